"""Running a program to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import ProgramFailed

# Debian's administration programs lie in sbin, which is not on every user's path.
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
SHOWN_LINES = 15


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program and give its standard output.

    Args:
        argv: The program and its arguments.
        stdin: Text for its standard input.
        cwd: Its working directory.
        env: Added to this process's environment.

    Raises:
        ProgramFailed: It does not exist or its exit status is not 0; the message has its last lines.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            input=stdin,
            cwd=cwd,
            env={**os.environ, "PATH": SEARCH_PATH, **(env or {})},
            text=True,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise ProgramFailed(f"{words[0]}: not found on {SEARCH_PATH}") from error
    if done.returncode:
        raise ProgramFailed(
            f"{' '.join(words)}\nended with {done.returncode}:\n{tail(done.stderr or done.stdout)}"
        )
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether a program exists and ends with status 0."""
    try:
        run(argv)
    except ProgramFailed:
        return False
    return True


def tail(text: str, lines: int = SHOWN_LINES) -> str:
    """The last lines of a program's output."""
    return "\n".join(text.strip().splitlines()[-lines:])
