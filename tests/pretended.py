"""A pretended device: what a graphics card would refuse is refused, where there is none.

Tensors that are moved to it compute as ever, but refuse to meet tensors that were left behind, and to become
NumPy arrays before they are moved back. So a missing ``.to(device)`` or ``.cpu()`` is found on any machine.
It refuses to draw random numbers too: a card would draw others than the processor. Gradients flow as ever.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from headstart.core.devices import device_of
from tests.limits import limits

DEVICE = torch.device("meta")  # the only device besides the processor that any build of torch can name
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_SHAPING = ("aten::squeeze_", "aten::unsqueeze_", "aten::transpose_", "aten::t_")
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::linalg_cholesky_ex")
_DRAWING = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential")


class Pretended(Tensor):
    """A tensor on the pretended device; its numbers are in ``inner``."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        dense = inner.layout == torch.strided
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride() if dense else None,
            storage_offset=inner.storage_offset() if dense else None,
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Within the ``with`` block, ``.to(DEVICE)`` and ``device=DEVICE`` give pretended tensors.

    Parameters
    ----------
    full : bool, default=False
        Whether the device has no memory left.

    Attributes
    ----------
    products : dict
        By whether it was computed on the device, the number of matrix products and decompositions.
    """

    def __init__(self, *, full: bool = False) -> None:
        super().__init__()
        self.full, self.products = full, Counter[bool]()

    def __enter__(self) -> Self:
        self._further = ExitStack()
        self._further.enter_context(_Making())
        fused = "torch.optim.optimizer._get_fused_kernels_supported_devices"
        self._further.enter_context(patch(fused, lambda: ["cpu", DEVICE.type]))
        self._further.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*to a meta parameter in the current model")
        super().__enter__()
        return self

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled; asking at every operation takes long

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._further.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.full and (kwargs or {}).get("device") == DEVICE:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if func._schema.name in _PRODUCTS:
            self.products[any(isinstance(each, Pretended) for each in _tensors(args))] += 1
        return _computed(func, args, kwargs or {})


@contextmanager
def device_named(name: str, device: torch.device = DEVICE) -> Iterator[None]:
    """Let there be a device of this name, for training and for scoring."""

    def find(asked: object) -> torch.device:
        return device if asked == name else device_of(asked)

    with limits(find_device=find):
        yield


class _Making(TorchFunctionMode):
    """Makes tensors from numbers, which torch does not for ``DEVICE``, and lets processes exchange them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.distributed.distributed_c10d":
            _require_together(func.__name__, args, named)
            there: list[Pretended] = []
            own, given = _inner(args, there), {name: _inner(each, there) for name, each in named.items()}
            with no_dispatch():
                return func(*own, **given)
        if func is Tensor.new_tensor:
            return torch.tensor(*args[1:], dtype=args[0].dtype, device="cpu").to(args[0].device)
        if func in (torch.tensor, torch.as_tensor) and named.get("device") == DEVICE:
            return func(*args, **{**named, "device": "cpu"}).to(DEVICE)
        return func(*args, **named)


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func._schema.name
    there: list[Pretended] = []
    own, named = _inner(args, there), {key: _inner(each, there) for key, each in kwargs.items()}
    goes = bool(there)
    if kwargs.get("device") is not None:
        goes, named["device"] = torch.device(kwargs["device"]) == DEVICE, torch.device("cpu")
    if there:
        _require_together(name, args, kwargs)
    if goes and _draws(name):
        raise RuntimeError(f"{name}: a card would draw other random numbers")
    found = func(*own, **named)
    if name in _SHAPING and there:
        with no_dispatch():
            func(*args, **kwargs)  # the shape that a pretended tensor shows
    if name.endswith("_") and there:  # it was computed in place
        return args[0] if func._schema.returns else None
    return _wrapped(found) if goes else found


@cache
def _draws(name: str) -> bool:
    return any(each in name for each in _DRAWING)


def _inner(given: Any, there: list[Pretended]) -> Any:
    """What is given with the numbers of pretended tensors, which are noted in ``there``."""
    if isinstance(given, Pretended):
        there.append(given)
        return given.inner
    return type(given)(_inner(each, there) for each in given) if isinstance(given, list | tuple) else given


def _wrapped(found: Any) -> Any:
    if isinstance(found, Tensor):
        return Pretended(found)
    return type(found)(_wrapped(each) for each in found) if isinstance(found, list | tuple) else found


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)


def _require_together(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse what a card would: it takes nothing from the processor but indices and single numbers."""
    if name == "aten::copy_":  # from one to the other
        return
    if name in _INDEXING:
        args = [args[0], *args[2:]]
    single = 0 if name in ("aten::cat", "aten::stack") else 1  # single numbers have no dimension
    every = [each for each in _tensors([*args, *kwargs.values()]) if each.dim() >= single]
    there = [isinstance(each, Pretended) for each in every]
    # What is on the processor cannot be indexed by a tensor of the card either.
    if (any(there) and not all(there)) or (name in _INDEXING and not there[0]):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
