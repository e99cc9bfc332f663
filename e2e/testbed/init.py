"""The first process of a node: it lives in the node's namespaces, holds them open and reaps orphans.

Run as a script, alone, inside new namespaces. When it is killed the kernel ends
every process of the node and takes its mounts and interfaces away.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def reap_forever() -> None:
    """Collect the status of every process that ends with this one as its parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    reap_forever()
