from testbed.borrowed import borrow, give_back


def test_a_missing_folder_is_made_and_taken_away_again(tmp_path):
    borrow(tmp_path / "record", tmp_path / "kubelet")
    assert (tmp_path / "kubelet").is_dir()
    give_back(tmp_path / "record")
    assert not (tmp_path / "kubelet").exists()


def test_a_folder_that_was_there_stays(tmp_path):
    (tmp_path / "kubelet").mkdir()
    borrow(tmp_path / "record", tmp_path / "kubelet")
    give_back(tmp_path / "record")
    assert (tmp_path / "kubelet").is_dir()


def test_a_folder_that_somebody_uses_by_now_stays(tmp_path):
    borrow(tmp_path / "record", tmp_path / "kubelet")
    (tmp_path / "kubelet/config").touch()
    give_back(tmp_path / "record")
    assert (tmp_path / "kubelet/config").exists()
