"""Progress of loading and prefill: a bar in terminals and notebooks, or the caller's function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from tqdm.auto import tqdm

ProgressOption = bool | Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps (bytes when loading, tokens in a prefill)."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started(Progress):
    """The device begins with a prompt; the `done` tokens of it were there already. No bar shows it."""


def wants_progress(option: ProgressOption) -> bool:
    """None means: when somebody is watching, in a terminal or a notebook."""
    if option is None:
        return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    return option is not False


class ProgressReport:
    """Shows progress as it comes in; nothing for work of a single step. Runs in the thread that waits for the work."""

    def __init__(self, option: ProgressOption, description: str, unit: str) -> None:
        self._callback = option if callable(option) else None
        self._shows_bar = self._callback is None and wants_progress(option)
        self._description = description
        self._unit = unit
        self._bar: tqdm[NoReturn] | None = None

    def update(self, progress: Progress) -> None:
        if isinstance(progress, Started):
            return
        if self._callback is not None:
            self._callback(progress.done, progress.total)
        elif self._shows_bar and (self._bar is not None or progress.done < progress.total):
            if self._bar is None:
                self._bar = self._new_bar(progress.total)
            self._bar.update(progress.done - self._bar.n)
            if progress.done >= progress.total:
                self.close()

    def _new_bar(self, total: int) -> tqdm[NoReturn]:
        return tqdm(total=total, desc=self._description, unit=self._unit, unit_scale=True, leave=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> ProgressReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
