"""What tests set and ask of software Metal."""

import ctypes
import time
from functools import cache

from lily import _core


class Control:
    """Software Metal in a loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.softmetal_take_reports.restype = ctypes.c_char_p
        library.softmetal_live_objects.restype = ctypes.c_char_p
        library.softmetal_configure.restype = None
        u64 = ctypes.c_uint64
        library.softmetal_configure.argtypes = [
            ctypes.c_int, ctypes.c_int, u64, u64, u64, ctypes.c_long, ctypes.c_int,
        ]  # fmt: skip

    def configure(
        self, *, reverse: bool = False, has_metal4: bool = True, max_buffer_length: int = 1 << 33,
        working_set_size: int = 1 << 34, fail_after: int = 0, fail_code: int = 0, stalls: bool = False,
    ) -> None:  # fmt: skip
        """Sets everything, what is not given to its default: the fields of Settings in softmetal.h."""
        self._library.softmetal_configure(
            reverse, has_metal4, max_buffer_length, working_set_size, fail_after, fail_code, stalls
        )

    def take_reports(self) -> list[str]:
        """What was misused since the last call."""
        return self._library.softmetal_take_reports().decode().splitlines()

    def live_objects(self) -> dict[str, int]:
        """How many Objective-C objects live, by class."""
        lines = self._library.softmetal_live_objects().decode().splitlines()
        return {name: int(count) for name, count in (line.rsplit(" ", 1) for line in lines)}

    def left_over(self, before: dict[str, int]) -> dict[str, int]:
        """What lives beyond that. A queue's thread lets go of its last work a moment later: ten seconds for that."""
        deadline = time.monotonic() + 10
        while more := {name: n for name, n in self.live_objects().items() if n > before.get(name, 0)}:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return more


def is_present() -> bool:
    """Whether lily was built over software Metal."""
    return hasattr(ctypes.CDLL(_core.__file__), "softmetal_configure")


@cache
def _of_core() -> Control:
    return Control(ctypes.CDLL(_core.__file__))


def configure(**settings: bool | int) -> None:
    """Control.configure of the software Metal in the extension."""
    _of_core().configure(**settings)


def take_reports() -> list[str]:
    """Control.take_reports of the software Metal in the extension."""
    return _of_core().take_reports()


def live_objects() -> dict[str, int]:
    """Control.live_objects of the software Metal in the extension."""
    return _of_core().live_objects()


def left_over(before: dict[str, int]) -> dict[str, int]:
    """Control.left_over of the software Metal in the extension."""
    return _of_core().left_over(before)
