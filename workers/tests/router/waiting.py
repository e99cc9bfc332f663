"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Return as soon as `condition` holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
