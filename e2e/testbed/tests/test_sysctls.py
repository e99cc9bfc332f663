import pytest

from testbed.sysctls import remember, restore


@pytest.fixture
def kernel(tmp_path):
    root = tmp_path / "sys"
    (root / "vm").mkdir(parents=True)
    (root / "vm/overcommit_memory").write_text("0\n")
    return root


def test_changed_values_are_put_back(kernel, tmp_path):
    record = tmp_path / "record"
    remember(record, kernel)
    (kernel / "vm/overcommit_memory").write_text("1\n")
    restore(record, kernel)
    assert (kernel / "vm/overcommit_memory").read_text() == "0\n"


def test_a_second_start_does_not_take_changed_values_for_the_original_ones(kernel, tmp_path):
    record = tmp_path / "record"
    remember(record, kernel)
    (kernel / "vm/overcommit_memory").write_text("1\n")
    remember(record, kernel)
    restore(record, kernel)
    assert (kernel / "vm/overcommit_memory").read_text() == "0\n"


def test_without_a_record_nothing_is_changed(kernel, tmp_path):
    restore(tmp_path / "record", kernel)
    assert (kernel / "vm/overcommit_memory").read_text() == "0\n"
