"""Which requests are in: as many as the engine can run, and a bounded number behind them."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ApiError, stopping
from .run import AnyRun


class Admission:
    """The requests between their check and their end. max_waiting: beyond those that can run at once."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._runs: dict[AnyRun, None] = {}  # in order
        self.stopping = False

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def runs(self) -> Sequence[AnyRun]:
        """In the order of their arrival."""
        return tuple(self._runs)

    @property
    def num_running(self) -> int:
        """Those that the device works on."""
        return sum(run.cached_tokens is not None for run in self._runs)

    @property
    def num_waiting(self) -> int:
        return len(self._runs) - self.num_running

    def enter(self, run: AnyRun, max_running: int) -> None:
        """Raises ApiError 503 if the queue is full."""
        if self.stopping:
            raise stopping()
        if len(self._runs) >= max_running + self._max_waiting:
            raise ApiError(
                503,
                f"the queue is full: {len(self._runs)} requests run or wait, of which {max_running} can run at once; "
                "try again later, or start the server with a larger --max-queue",
                code="queue_full",
                retry_after=max(1, round(len(self._runs) / max_running)),
            )
        self._runs[run] = None

    def leave(self, run: AnyRun) -> None:
        self._runs.pop(run, None)

    def abort_all(self) -> None:
        """End every request with an error that says that the server stops."""
        self.stopping = True
        for run in list(self._runs):
            run.abort(stopping())
