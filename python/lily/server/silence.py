"""How long a stream has been silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Silence:
    """Calls `on_end` when nothing was written for `seconds`, again and again.

    A token costs it a look at the clock: the timer is not moved by each, it finds out itself how much is left.
    """

    def __init__(self, seconds: float, on_end: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    @property
    def is_over(self) -> bool:
        return self._loop.time() - self._since >= self._seconds

    def restart(self) -> None:
        """Something is written now."""
        self._since = self._loop.time()

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self.is_over:
            self._on_end()
            self._timer = self._loop.call_later(self._seconds, self._look)
        else:
            self._timer = self._loop.call_at(self._since + self._seconds, self._look)
