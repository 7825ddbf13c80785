"""The part of the CUDA driver's interface that single kernels need, through ctypes: no toolkit, no package."""

import ctypes
import time
from collections.abc import Sequence
from functools import cache

_LIBRARIES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")
_SUCCESS, _NOT_READY = 0, 600
_MAJOR, _MINOR = 75, 76  # attributes of a device: its compute capability
_FUNCTION_ATTRIBUTES = {"shared_bytes": 1, "local_bytes": 3, "registers": 4}
_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES = 5, 6  # options of the compiler
_TIMEOUT_SECONDS = 60


class CudaError(Exception):
    """There is no GPU, or the driver refused something: its own name for that, and what was asked."""


@cache
def _driver() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError("there is no NVIDIA driver here (libcuda.so.1)")


def _call(name: str, *arguments: object, about: str = "") -> None:
    status = getattr(_driver(), name)(*arguments)
    if status != _SUCCESS:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(text))
        known = text.value.decode() if text.value else str(status)
        raise CudaError(f"{name}: {known}{f': {about}' if about else ''}")


class Function:
    """A compiled kernel, its registers and the bytes of memory that a thread (local) and a block (shared) take."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle
        self.needs: dict[str, int] = {}
        for name, attribute in _FUNCTION_ATTRIBUTES.items():
            value = ctypes.c_int()
            _call("cuFuncGetAttribute", ctypes.byref(value), attribute, handle)
            self.needs[name] = value.value


class Memory:
    """`size` bytes of the GPU's memory."""

    def __init__(self, size: int) -> None:
        self.address = ctypes.c_uint64()
        _call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size), about=f"{size} bytes")

    def at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.address.value + offset)

    def write(self, data: bytes) -> None:
        _call("cuMemcpyHtoD_v2", self.address, data, ctypes.c_size_t(len(data)))

    def read(self, size: int) -> bytearray:
        data = bytearray(size)
        _call("cuMemcpyDtoH_v2", (ctypes.c_char * size).from_buffer(data), self.address, ctypes.c_size_t(size))
        return data

    def free(self) -> None:
        _driver().cuMemFree_v2(self.address)  # fails behind a fault, which has been reported


class Gpu:
    """The first GPU, with a context that is current in this thread."""

    def __init__(self) -> None:
        _call("cuInit", 0)
        device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(device), 0)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        _call("cuDeviceGetName", name, 100, device)
        _call("cuDriverGetVersion", ctypes.byref(version))
        self.name = name.value.decode()
        self.driver = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        capability = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            _call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            capability.append(value.value)
        self.capability = (capability[0], capability[1])
        self._finished = ctypes.c_void_p()
        _call("cuEventCreate", ctypes.byref(self._finished), 0)

    def allocate(self, size: int) -> Memory:
        return Memory(size)

    def load(self, ptx: str, name: str) -> Function:
        """Compiles a module and looks up its kernel `name`."""
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_ERROR_LOG_BUFFER, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            _call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), 2, options, values)
        except CudaError as error:
            raise CudaError(f"{name}: {error}\n{log.value.decode()}") from None
        _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode(), about=name)
        return Function(function)

    def launch(
        self, function: Function, blocks: Sequence[int], threads: int, addresses: Sequence[ctypes.c_uint64],
        args: bytes, about: str,
    ) -> None:  # fmt: skip
        """Runs a kernel that takes `addresses` and then a struct `args`, and waits until it has ended."""
        struct = (ctypes.c_char * len(args)).from_buffer_copy(args)
        pointers = [*map(ctypes.addressof, addresses), ctypes.addressof(struct)]
        parameters = (ctypes.c_void_p * len(pointers))(*pointers)
        _call("cuLaunchKernel", function.handle, *blocks, threads, 1, 1, 0, None, parameters, None, about=about)
        _call("cuEventRecord", self._finished, None, about=about)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (status := _driver().cuEventQuery(self._finished)) == _NOT_READY:
            if time.monotonic() > deadline:
                raise CudaError(f"{about}: not done after {_TIMEOUT_SECONDS} seconds: does a lane miss a barrier?")
        if status != _SUCCESS:
            _call("cuEventQuery", self._finished, about=about)
