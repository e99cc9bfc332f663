"""What can go wrong in the test bed; every message says what to do next.

TestbedError
├── CannotRunHere    this machine lacks something; tests skip with its text
├── ProgramFailed    a program ended with an error
└── NotInTime        a condition did not become true before its deadline
"""

from __future__ import annotations


class TestbedError(RuntimeError):
    """Root of the test bed's errors."""

    __test__ = False


class CannotRunHere(TestbedError):
    """The machine lacks something that the test bed cannot bring along."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot run here: {reason}")


class ProgramFailed(TestbedError):
    """A program ended with an error, or one that should run has ended."""


class NotInTime(TestbedError):
    """A condition did not become true before its deadline."""
