from pathlib import Path

from testbed.cgroups import controllers, hierarchies, mounted

FIRST = """\
tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
"""
HYBRID = FIRST + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
SECOND = "cgroup2 {root} cgroup2 rw,nsdelegate 0 0\n"


def test_version_1_has_its_controllers_beside_each_other():
    assert hierarchies(FIRST) == [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory")]
    assert controllers(FIRST) >= {"cpu", "memory"}


def test_the_empty_version_2_hierarchy_beside_version_1_is_only_swept():
    assert hierarchies(HYBRID) == hierarchies(FIRST)
    assert mounted(HYBRID)["cgroup2"] == [Path("/sys/fs/cgroup/unified")]


def test_version_2_lists_its_controllers_in_a_file(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    mounts = SECOND.format(root=tmp_path)
    assert hierarchies(mounts) == [tmp_path]
    assert controllers(mounts) == {"cpuset", "cpu", "io", "memory", "pids"}


def test_without_control_groups_there_are_no_controllers():
    assert controllers("proc /proc proc rw 0 0\n") == set()
