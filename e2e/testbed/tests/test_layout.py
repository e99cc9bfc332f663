import stat
import subprocess
import sys
from pathlib import Path

from testbed.layout import Layout, private_folder, remove_tree

HOLD = """\
import sys
from pathlib import Path
from testbed.layout import Layout
with Layout(Path(sys.argv[1])).locked("x"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_the_root_comes_from_the_environment(tmp_path):
    assert Layout.from_environment({"MMDISAGG_TESTBED_DIR": str(tmp_path)}).root == tmp_path
    assert Layout.from_environment({}).root == Path("~/.cache/mmdisagg/testbed").expanduser().resolve()


def test_a_lock_keeps_others_waiting_and_goes_with_a_killed_process(tmp_path, capsys):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"])
        with Layout(tmp_path).locked("x"):
            assert "waiting for another testbed command" in capsys.readouterr().err
        killer.wait()


def test_keys_lie_where_only_their_owner_may_look(tmp_path):
    assert stat.S_IMODE(private_folder(tmp_path / "keys").stat().st_mode) == 0o700


def test_removing_what_is_not_there_is_no_error(tmp_path):
    remove_tree(tmp_path / "absent")
