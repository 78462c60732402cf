"""The Neuron runtime, `libnrt.so.1`, through ctypes: no torch, no Neuron package.

The functions and their types are those of the SDK's nrt/nrt.h, the status numbers those of nrt/nrt_status.h.
`nrt_get_attached_efa_bdf` came with SDK 2.29 (runtime 2.31).
"""

import ctypes
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from neuron_pd.buffers.machine import BufferFault

SONAME = "libnrt.so.1"
LIBRARY_PATH = "/opt/aws/neuron/lib"
NO_FRAMEWORK = 1  # NRT_FRAMEWORK_TYPE_NO_FW
ON_DEVICE = 0  # NRT_TENSOR_PLACEMENT_DEVICE


class Status(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    INVALID = 2
    INVALID_HANDLE = 3
    RESOURCE = 4
    TIMEOUT = 5
    HW_ERROR = 6
    QUEUE_FULL = 7
    LOAD_NOT_ENOUGH_NC = 9
    UNSUPPORTED_NEFF_VERSION = 10
    FAIL_HOST_MEM_ALLOC = 11
    UNINITIALIZED = 13
    CLOSED = 14


class NrtError(BufferFault):
    """The runtime refused a call. `status` is its number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


_C = ctypes
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nrt_init": (_C.c_int, (_C.c_int, _C.c_char_p, _C.c_char_p)),
    "nrt_close": (None, ()),
    "nrt_get_visible_vnc_count": (_C.c_int, (_C.POINTER(_C.c_uint32),)),
    "nrt_tensor_allocate": (_C.c_int, (_C.c_int, _C.c_int, _C.c_size_t, _C.c_char_p, _C.POINTER(_C.c_void_p))),
    "nrt_tensor_free": (None, (_C.POINTER(_C.c_void_p),)),
    "nrt_tensor_get_va": (_C.c_void_p, (_C.c_void_p,)),
    "nrt_tensor_read": (_C.c_int, (_C.c_void_p, _C.c_void_p, _C.c_size_t, _C.c_size_t)),
    "nrt_tensor_write": (_C.c_int, (_C.c_void_p, _C.c_void_p, _C.c_size_t, _C.c_size_t)),
    "nrt_get_dmabuf_fd": (_C.c_int, (_C.c_uint64, _C.c_uint64, _C.POINTER(_C.c_int))),
    "nrt_get_attached_efa_bdf": (_C.c_int, (_C.c_void_p, _C.c_char_p, _C.POINTER(_C.c_size_t))),
}


class Runtime:
    """The runtime of this process: the library is the one that the framework has loaded, if it has."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, (result, arguments) in _PROTOTYPES.items():
            if (function := getattr(library, name, None)) is not None:
                function.restype, function.argtypes = result, arguments

    @classmethod
    def load(cls) -> "Runtime":
        """BufferFault where the loader does not find the library. By its soname alone, as NIXL looks for it."""
        try:
            return cls(ctypes.CDLL(SONAME))
        except OSError:
            raise BufferFault(
                f"{SONAME} is not on the loader's path, where NIXL looks for it too: "
                f'`export LD_LIBRARY_PATH="{LIBRARY_PATH}:$LD_LIBRARY_PATH"` (package aws-neuronx-runtime-lib)'
            ) from None

    def init(self) -> None:
        """Take the visible cores. Only for processes without a framework: a framework does it itself."""
        self._call("nrt_init", NO_FRAMEWORK, b"", b"", hint="`neuron-ls` shows who holds the cores")

    def close(self) -> None:
        self._library.nrt_close()

    def visible_cores(self) -> int:
        """How many logical cores this process has. NrtError with UNINITIALIZED before `nrt_init`."""
        count = ctypes.c_uint32()
        self._call("nrt_get_visible_vnc_count", ctypes.byref(count))
        return count.value

    def require_initialised(self) -> None:
        """BufferFault where the runtime has not been started in this process: NIXL would not see its memory."""
        try:
            self.visible_cores()
        except NrtError as error:
            if error.status not in (Status.UNINITIALIZED, Status.CLOSED):
                raise
            raise BufferFault(
                "the Neuron runtime is not initialised in this process, and a NIXL agent made now would not see its "
                'memory: make the first device tensor (`torch.zeros(1, device="neuron")`, or `nrt_init`) before it'
            ) from None

    def allocate(self, nbytes: int, core: int = 0) -> "NrtTensor":
        handle = ctypes.c_void_p()
        self._call("nrt_tensor_allocate", ON_DEVICE, core, nbytes, None, ctypes.byref(handle))
        return NrtTensor(self, handle, nbytes)

    def require_dmabuf(self, address: int, nbytes: int) -> None:
        """BufferFault where the driver does not export this memory: libfabric registers it by dma-buf."""
        descriptor = ctypes.c_int(-1)
        hint = (
            "HBM cannot be registered without it: update aws-neuronx-dkms and aws-neuronx-runtime-lib to one SDK "
            'release and load the efa driver, or set "buffer": "staged"'
        )
        self._call("nrt_get_dmabuf_fd", address, nbytes, ctypes.byref(descriptor), hint=hint)
        os.close(descriptor.value)

    def efa_address(self, address: int) -> str | None:
        """PCI address of the EFA device next to the device that holds `address`; NIXL picks its rail by it.

        None where the runtime cannot say (before SDK 2.29, or no EFA): then NIXL uses every rail.
        """
        if not hasattr(self._library, "nrt_get_attached_efa_bdf"):
            return None
        text = ctypes.create_string_buffer(32)
        length = ctypes.c_size_t(len(text))
        if self._library.nrt_get_attached_efa_bdf(address, text, ctypes.byref(length)) != Status.SUCCESS:
            return None
        return text.value.decode()

    def _call(self, name: str, *arguments: Any, hint: str = "") -> None:
        function: Callable[..., int] | None = getattr(self._library, name, None)
        if function is None:
            raise BufferFault(f"{SONAME} has no {name}: update aws-neuronx-runtime-lib")
        if (status := function(*arguments)) != Status.SUCCESS:
            known = Status(status).name if status in set(Status) else "unknown"
            raise NrtError(f"{name} failed with status {status} ({known})" + (f": {hint}" if hint else ""), status)


class NrtTensor:
    """Device memory without a framework. Freed by `free`, or with this object."""

    def __init__(self, runtime: Runtime, handle: ctypes.c_void_p, nbytes: int) -> None:
        self._runtime = runtime
        self._handle = handle
        self.nbytes = nbytes

    def data_ptr(self) -> int:
        """Its virtual address, or 0 where the runtime does not map HBM."""
        return self._runtime._library.nrt_tensor_get_va(self._handle) or 0

    def read(self, offset: int, nbytes: int, into: int) -> None:
        """Copy from the device to the host address `into`."""
        self._runtime._call("nrt_tensor_read", self._handle, into, offset, nbytes)

    def write(self, offset: int, nbytes: int, source: int) -> None:
        """Copy from the host address `source` to the device."""
        self._runtime._call("nrt_tensor_write", self._handle, source, offset, nbytes)

    def free(self) -> None:
        if self._handle:
            self._runtime._library.nrt_tensor_free(ctypes.byref(self._handle))
            self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        self.free()
