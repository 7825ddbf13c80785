"""A device of single kernels, as lily's own (`lily._core.Device`), that runs the shaders as PTX."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.msl.grid import find_grid, grids
from tools.msl.preamble import kernel_defines

from .cuda import CudaError, Function, Gpu, Memory
from .folder import PtxFolder

_GUARD = bytes(range(1, 129)) * 2  # before and behind each buffer; kernels need their buffers aligned to 16 bytes


class Kernels:
    """Functions of a folder of PTX on a GPU, each compiled once, and the names of all that were asked for."""

    def __init__(self, gpu: Gpu, folder: PtxFolder, form: str) -> None:
        self.gpu = gpu
        self.ran: dict[str, dict[str, int]] = {}  # registers and memory, by the kernel's name
        self._folder = folder
        self._form = form
        self._functions: dict[tuple[str, frozenset[tuple[str, int]], float], Function] = {}

    def function(self, kernel: str, sizes: Mapping[str, int], eps: float) -> Function:
        key = kernel, frozenset(sizes.items()), eps
        if key not in self._functions:
            grid = find_grid(kernel)
            ptx = self._folder.find(grid.shader, kernel_defines(kernel, sizes, eps, self._form))
            function = self._functions[key] = self.gpu.load(ptx, f"msl_entry_{grid.function}")
            before = self.ran.setdefault(kernel, function.needs)
            self.ran[kernel] = {what: max(before[what], needs) for what, needs in function.needs.items()}
        return self._functions[key]


class Device:
    """For a model of the given sizes."""

    def __init__(self, kernels: Kernels, sizes: Mapping[str, int], eps: float) -> None:
        self._kernels = kernels
        self._sizes = sizes
        self._eps = eps

    @property
    def description(self) -> str:
        return self._kernels.gpu.name

    def kernel_names(self) -> list[str]:
        return [name for grid in grids() for name in grid.kernel_names()]

    def run(self, kernel: str, args: bytes, buffers: Sequence[NDArray[Any]], extent: tuple[int, int, int]) -> None:
        """One dispatch; buffers that are not read-only arrays are as the kernel left them. Raises CudaError, also where
        something was written around a buffer or into a read-only array."""
        grid = find_grid(kernel)
        function = self._kernels.function(kernel, self._sizes, self._eps)
        blocks = grid.threadgroups(extent)
        if 0 in blocks:
            return
        memory = [self._kernels.gpu.allocate(2 * len(_GUARD) + buffer.nbytes) for buffer in buffers]
        try:
            for place, buffer in zip(memory, buffers, strict=True):
                place.write(_GUARD + buffer.tobytes() + _GUARD)
            addresses = [place.at(len(_GUARD)) for place in memory]
            self._kernels.gpu.launch(function, blocks, grid.threads, addresses, args, kernel)
            for index, (place, buffer) in enumerate(zip(memory, buffers, strict=True)):
                self._take(kernel, index, place, buffer)
        finally:
            for place in memory:
                place.free()

    @staticmethod
    def _take(kernel: str, index: int, place: Memory, buffer: NDArray[Any]) -> None:
        data = place.read(2 * len(_GUARD) + buffer.nbytes)
        if data[: len(_GUARD)] != _GUARD or data[-len(_GUARD) :] != _GUARD:
            raise CudaError(f"{kernel} wrote outside of buffer {index} of {buffer.nbytes} bytes")
        values = np.frombuffer(data, buffer.dtype, buffer.size, len(_GUARD)).reshape(buffer.shape)
        if buffer.flags.writeable:
            buffer[...] = values
        elif values.tobytes() != buffer.tobytes():
            raise CudaError(f"{kernel} changed buffer {index}, which it only reads")
