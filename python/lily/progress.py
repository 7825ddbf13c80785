"""Progress of loading and prefill: a bar in terminals and notebooks, or the caller's function."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from tqdm import TqdmWarning

from .closing import Closing

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # a notebook without ipywidgets has bars of text, which will do
    from tqdm.auto import tqdm

_LEAST_TOKENS: Final = 128  # a prefill of fewer is over before a bar is read

ProgressOption = bool | Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps (bytes when loading, tokens in a prefill)."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started(Progress):
    """The device begins with a prompt; the `done` tokens of it were there already."""


def wants_progress(option: ProgressOption) -> bool:
    """None means: when somebody is watching, in a terminal or a notebook."""
    if option is None:
        return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    return option is not False


class ProgressReport(Closing):
    """Shows progress as it comes in, if at least `least` steps are to be done. Runs in the thread that waits."""

    def __init__(self, option: ProgressOption, description: str, unit: str, *, least: int = 1) -> None:
        self._callback = option if callable(option) else None
        self._shows_bar = self._callback is None and wants_progress(option)
        self._description = description
        self._unit = unit
        self._least = least
        self._bar: tqdm[NoReturn] | None = None

    def update(self, progress: Progress) -> None:
        if self._callback is not None:
            if not isinstance(progress, Started):
                self._callback(progress.done, progress.total)
            return
        if self._shows_bar and self._bar is None and progress.total - progress.done >= self._least:
            self._bar = self._new_bar(progress)
        if self._bar is not None:
            self._bar.update(progress.done - self._bar.n)
            if progress.done >= progress.total:
                self.close()

    def _new_bar(self, begin: Progress) -> tqdm[NoReturn]:
        return tqdm(
            total=begin.total,
            initial=begin.done,
            desc=self._description,
            unit=self._unit,
            unit_scale=True,
            leave=False,
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def prefill_report(option: ProgressOption) -> ProgressReport:
    """Of a prompt: from when the device begins with it, which may be long before its first chunk is done."""
    return ProgressReport(option, "prefill", "tok", least=_LEAST_TOKENS)
