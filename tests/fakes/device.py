"""A torch tensor of an accelerator that is not there: behaves as one, lies in host memory, counts what is done."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch

DONE: Counter[str] = Counter()  # torch functions that were called with a device tensor, by name


class DeviceTensor:
    """`inner` as a tensor of `device` ("cuda", "neuron"). With `mapped` false its address is 0.

    Like a compiled device's tensors it takes part in torch functions; gathering by index is refused, because on such
    devices it costs as much as the whole tensor.
    """

    def __init__(self, inner: torch.Tensor, device: str, mapped: bool = True) -> None:
        self.inner = inner
        self.device = SimpleNamespace(type=device, index=0)
        self.mapped = mapped

    def data_ptr(self) -> int:
        return self.inner.data_ptr() if self.mapped else 0

    def get_device(self) -> int:
        return 0

    def untyped_storage(self) -> Any:
        storage = self.inner.untyped_storage()
        return SimpleNamespace(data_ptr=lambda: storage.data_ptr() if self.mapped else 0, nbytes=storage.nbytes)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: type(self).__torch_function__(
            getattr(torch.Tensor, name), (), (self, *args), kwargs
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__
        if name in ("index_select", "__getitem__", "index_copy_"):
            raise AssertionError(f"{name} on a device tensor")
        DONE[name] += 1
        like = next(arg for arg in args if isinstance(arg, cls))
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        result = function(*plain, **(kwargs or {}))
        return cls(result, like.device.type, like.mapped) if isinstance(result, torch.Tensor) else result
