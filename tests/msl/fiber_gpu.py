"""A double of the GPU of tools/ptx: the same kernels on the CPU, in memory that it hands out."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.msl.runtime import dispatch
from tools.msl.build import Source, library


class LibraryFolder:
    """In the place of a folder of PTX: the text is the path of a library."""

    def find(self, shader: Path, defines: Mapping[str, str]) -> str:
        return str(library(Source.read(shader, defines)))


class HostMemory:
    def __init__(self, size: int) -> None:
        self._bytes = (ctypes.c_char * (size + 16))()
        self._address = -(-ctypes.addressof(self._bytes) // 16) * 16

    def at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self._address + offset)

    def write(self, data: bytes) -> None:
        ctypes.memmove(self._address, data, len(data))

    def read(self, size: int) -> bytearray:
        return bytearray(ctypes.string_at(self._address, size))

    def free(self) -> None:
        pass


@dataclass
class FiberFunction:
    library: Path
    name: str
    needs: dict[str, int] = field(default_factory=lambda: {"registers": 1})


class FiberGpu:
    name = "fibers"

    def allocate(self, size: int) -> HostMemory:
        return HostMemory(size)

    def load(self, ptx: str, name: str) -> FiberFunction:
        return FiberFunction(Path(ptx), name.removeprefix("msl_entry_"))

    def launch(
        self, function: FiberFunction, blocks: Sequence[int], threads: int, addresses: Sequence[ctypes.c_uint64],
        args: bytes, about: str,
    ) -> None:  # fmt: skip
        struct = ctypes.create_string_buffer(args, len(args))
        places = [*(address.value for address in addresses), ctypes.addressof(struct)]
        dispatch(function.library, function.name, places, blocks, (threads, 1, 1))
