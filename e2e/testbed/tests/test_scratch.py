import os
import subprocess
import sys

import pytest

from testbed.layout import Layout
from testbed.processes import Processes
from testbed.scratch import own_instance, owner, remove_orphans, scratch

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def dead_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_an_instance_names_its_owner():
    assert owner(own_instance("api")) == os.getpid()


@pytest.mark.parametrize("name", ["cluster", "api", "api-x-1"])
def test_instances_that_outlive_their_command_have_none(name):
    assert owner(name) is None


def test_a_scratch_folder_goes_with_its_block(tmp_path):
    with scratch(Layout(tmp_path)) as place:
        (place.folder / "file").touch()
    assert not place.folder.exists()


def test_what_a_killed_process_left_behind_is_removed(tmp_path, dead_pid):
    layout = Layout(tmp_path)
    folder = layout.live(f"api-{dead_pid}-1")
    folder.mkdir(parents=True)
    left = Processes(folder, layout.log("x"))
    left.start("etcd", SLEEP)
    remove_orphans(layout)
    assert left.running() == {}
    assert not folder.exists()


def test_what_is_in_use_stays(tmp_path):
    layout = Layout(tmp_path)
    kept = [layout.live(own_instance("api")), layout.live("cluster")]
    for folder in kept:
        folder.mkdir(parents=True)
    remove_orphans(layout)
    assert all(folder.exists() for folder in kept)
