"""Machine-wide leases, held by kernel locks: no daemon, and nothing to clean up after a crash.

A lease is an exclusive `flock` on a small file in a directory that all users of the machine share. The kernel
drops the lock when the last process that holds the open file ends. A child that inherits the file therefore
keeps the lease alive, which is what an engine's slot needs: the slot is free when the engine's memory is.
"""

import contextlib
import fcntl
import os
from pathlib import Path


class Lease:
    """One held lease; free it with `release`, or let a child inherit its file so that it holds it too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def fileno(self) -> int:
        """The open file that holds the lock."""
        if self._descriptor is None:
            raise ValueError("this lease was released")
        return self._descriptor

    def release(self) -> None:
        """Let go of it; safe to call twice. Children that inherited the file keep the lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LeaseDirectory:
    """A directory of leases with names; made on first use, writable by every user."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def try_take(self, name: str, holder: str) -> Lease | None:
        """Take the lease called `name` if it is free; `holder` says in words who has it."""
        descriptor = self._open(name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        return Lease(descriptor)

    def holder(self, name: str) -> str:
        """Who took this lease last, in words; the empty string when nobody did."""
        try:
            return (self._path / name).read_text(errors="replace")
        except OSError:
            return ""

    def _open(self, name: str) -> int:
        if not self._path.is_dir():
            self._path.mkdir(parents=True, exist_ok=True)
            # The umask must not shut out the machine's other users.
            with contextlib.suppress(PermissionError):
                self._path.chmod(0o1777)
        return _open_shared(self._path / name)


def _open_shared(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # Without O_CREAT first: fs.protected_regular refuses it for another user's file in a sticky
        # directory.
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(PermissionError):
            os.fchmod(descriptor, 0o666)
        return descriptor
