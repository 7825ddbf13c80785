"""Ctrl-C in a conversation: it stops what somebody waits for, and never the program."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class CtrlC:
    """While it is entered, Ctrl-C raises KeyboardInterrupt inside of `with ctrl_c.raises` alone; elsewhere it does
    nothing, so that none that comes a moment too early or too late ends the program. For the main thread."""

    def __init__(self) -> None:
        self.raises = _Raises()

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self.raises.handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)


class _Raises:
    def __init__(self) -> None:
        self._is_on = False

    def __enter__(self) -> None:
        self._is_on = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_on = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_on:
            self._is_on = False  # at once: it may be raised in __exit__, in front of its only line
            raise KeyboardInterrupt
