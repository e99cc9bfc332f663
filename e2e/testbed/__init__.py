"""A real Kubernetes for tests, on one bare Linux machine: no registry, no Docker, no systemd.

``python -m testbed up`` compiles Kubernetes once, starts a control plane and
nodes and prints where the kubeconfig is; ``down`` leaves nothing behind. See
README.md beside this file.
"""

from testbed.api import ApiServer
from testbed.errors import CannotRunHere, NotInTime, ProgramFailed, TestbedError
from testbed.probe import capable

__all__ = ["ApiServer", "CannotRunHere", "NotInTime", "ProgramFailed", "TestbedError", "capable"]
