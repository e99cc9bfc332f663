"""The keyed work queue: what is due when (pure), and the tasks that do it.

A key is worked on by one worker at a time. Events for a key that waits are merged into one; events that come
while it is being worked on make it due again afterwards. A key that fails comes back after a growing pause,
and only news about the resource itself cut that short. Every known key comes back after the resync period,
so that nothing depends on an event that got lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SETTLE_SECONDS: Final = 0.1
"""How long news may gather before a key is worked on."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How often a key comes back, in seconds.

    Attributes:
        resync: after a success.
        first_retry: after the first failure; doubled with each further one.
        last_retry: the longest pause between failures.
    """

    resync: float = 300.0
    first_retry: float = 1.0
    last_retry: float = 60.0

    def retry(self, failures: int) -> float:
        """Return the pause after so many failures in a row."""
        doubled: float = self.first_retry * 2.0 ** min(failures - 1, 32)
        return min(doubled, self.last_retry)


@dataclass
class _Entry:
    due: float
    failures: int = 0
    busy: bool = False
    news: bool = False


@dataclass
class Schedule(Generic[K]):
    """Which key is due when. Knows no clock: every call says what time it is, in seconds.

    Attributes:
        pace: how often keys come back.
    """

    pace: Pace = field(default_factory=Pace)
    _entries: dict[K, _Entry] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def add(self, key: K, now: float, *, urgent: bool = False) -> None:
        """Note news about a key.

        Args:
            key: what they are about.
            now: the time.
            urgent: whether they may make up for earlier failures.
        """
        due = now + SETTLE_SECONDS
        entry = self._entries.setdefault(key, _Entry(due))
        entry.news = entry.busy
        if urgent:
            entry.failures = 0
        if not entry.failures:
            entry.due = min(entry.due, due)

    def take(self, now: float) -> K | None:
        """Return the key that has been due for longest and mark it busy; None when nothing is due."""
        due = [(entry.due, n, key) for n, (key, entry) in enumerate(self._entries.items()) if not entry.busy]
        first = min(due, default=None)
        if first is None or first[0] > now:
            return None
        self._entries[first[2]].busy = True
        return first[2]

    def next_due(self) -> float | None:
        """Return when the next key is due; None without keys that wait."""
        return min((entry.due for entry in self._entries.values() if not entry.busy), default=None)

    def waiting(self, now: float) -> int:
        """Return how many keys are due and not worked on."""
        return sum(entry.due <= now and not entry.busy for entry in self._entries.values())

    def done(self, key: K, now: float, after: float | None = None) -> None:
        """Note that a key was worked on; it comes back `after` seconds, or after the resync period."""
        self._finish(key, failures=0, due=now + (self.pace.resync if after is None else after), now=now)

    def failed(self, key: K, now: float) -> float:
        """Note that a key could not be worked on; returns the pause, in seconds."""
        failures = self._entries[key].failures + 1 if key in self._entries else 1
        pause = self.pace.retry(failures)
        self._finish(key, failures=failures, due=now + pause, now=now)
        return pause

    def forget(self, key: K, now: float) -> None:
        """Drop a key that is no more, unless there are news about it."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.news:
            self.add(key, now)

    def _finish(self, key: K, *, failures: int, due: float, now: float) -> None:
        entry = self._entries[key]
        entry.busy = False
        # What failed is not hurried by the news that the failure itself has made.
        hurried = entry.news and not failures
        entry.due = min(due, now + SETTLE_SECONDS) if hurried else due
        entry.failures, entry.news = failures, False


@dataclass(frozen=True)
class Result:
    """How the work on a key ended.

    Attributes:
        gone: the key is no more.
        failed: it must be tried again, with backoff.
        after: seconds until it comes back; the resync period where None.
    """

    gone: bool = False
    failed: bool = False
    after: float | None = None


Work = Callable[[K], Awaitable[Result]]
"""Works on a key; an exception is a failure."""


@dataclass
class WorkQueue(Generic[K]):
    """Runs the schedule with some workers.

    Attributes:
        work: what is done with a key.
        clock: monotonic time in seconds.
        schedule: what is due when.
        workers: how many keys are worked on at once.
    """

    work: Work[K]
    clock: Callable[[], float]
    schedule: Schedule[K] = field(default_factory=Schedule)
    workers: int = 4
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Note news about a key."""
        self.schedule.add(key, self.clock(), urgent=urgent)
        self._changed.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = self.schedule.take(self.clock())
            if key is None:
                await self._wait()
            else:
                await self._process(key)

    async def _wait(self) -> None:
        self._changed.clear()
        due = self.schedule.next_due()
        pause = None if due is None else max(0.0, due - self.clock())
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _process(self, key: K) -> None:
        try:
            result = await self.work(key)
        except Exception:
            _logger.exception("%s: failed", key)
            result = Result(failed=True)
        now = self.clock()
        if result.gone:
            self.schedule.forget(key, now)
        elif result.failed:
            pause = self.schedule.failed(key, now)
            _logger.warning("%s: tried again in %.0f s", key, pause)
        else:
            self.schedule.done(key, now, result.after)
        self._changed.set()
