"""How long each step took, printed when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def _print_now(line: str) -> None:
    print(line, flush=True)


@dataclass
class Steps:
    """Prints one line per finished step: its seconds, then what it was."""

    show: Callable[[str], None] = _print_now
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @contextmanager
    def timed(self, text: str) -> Iterator[None]:
        """Time the block; a block that raises prints nothing."""
        before = self.clock()
        yield
        self.show(f"{self.clock() - before:7.1f} s  {text}")

    def begin(self, text: str) -> None:
        """Announce a step that takes minutes."""
        self.show(f"      ...  {text}")

    def total(self, text: str) -> None:
        """Print the seconds since the first step."""
        self.show(f"{self.clock() - self._began:7.1f} s  in all: {text}")


def silent() -> Steps:
    """Steps that print nothing, for use inside tests."""
    return Steps(show=lambda line: None)
