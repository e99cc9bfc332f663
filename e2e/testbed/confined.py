"""Running a program so that nothing outlives it: no process, no mount."""

from __future__ import annotations

# When ``unshare`` is killed the kernel ends all that runs inside and takes its mounts away.
CONFINED = (
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
"""The words before a command of root's."""
