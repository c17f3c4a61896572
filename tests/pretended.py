"""A pretended device: what a graphics card would refuse is refused, where there is none.

Tensors that are moved to it compute as ever, but refuse to meet tensors that were left behind, and to become
NumPy arrays before they are moved back. So a missing ``.to(device)`` or ``.cpu()`` is found on any machine.
It refuses to draw random numbers too: a card would draw others than the processor. Gradients flow as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")  # the only device besides the processor that any build of torch can name
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_SHAPING = ("aten::squeeze_", "aten::unsqueeze_", "aten::transpose_", "aten::t_")
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
    """Within the ``with`` block, ``.to(DEVICE)`` and ``device=DEVICE`` give pretended tensors."""

    def __enter__(self) -> Self:
        self._further = ExitStack()
        self._further.enter_context(_Making())
        fused = "torch.optim.optimizer._get_fused_kernels_supported_devices"
        self._further.enter_context(mock.patch(fused, lambda: ["cpu", DEVICE.type]))
        super().__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._further.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Making(TorchFunctionMode):
    """Makes tensors from numbers: by itself torch puts none into a tensor of the device ``DEVICE`` names."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is Tensor.new_tensor:
            return torch.tensor(*args[1:], dtype=args[0].dtype, device="cpu").to(args[0].device)
        if func in (torch.tensor, torch.as_tensor) and named.get("device") == DEVICE:
            return func(*args, **{**named, "device": "cpu"}).to(DEVICE)
        return func(*args, **named)


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func._schema.name
    there = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Pretended)]
    own, named = tree_map_only(Pretended, lambda each: each.inner, (args, dict(kwargs)))
    goes = bool(there)
    if kwargs.get("device") is not None:
        goes, named["device"] = torch.device(kwargs["device"]) == DEVICE, torch.device("cpu")
    if there and _left_behind(name, args, kwargs):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    if goes and any(each in name for each in _DRAWING):
        raise RuntimeError(f"{name}: a card would draw other random numbers")
    found = func(*own, **named)
    if name in _SHAPING and there:
        with no_dispatch():
            func(*args, **kwargs)  # the shape that a pretended tensor shows
    if name.endswith("_") and there:  # it was computed in place
        return args[0] if func._schema.returns else None
    return tree_map_only(Tensor, Pretended, found) if goes else found


def _left_behind(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a card would miss a tensor: it takes indices and single numbers from the processor."""
    if name == "aten::copy_":  # from one to the other
        return False
    if name in _INDEXING:  # nothing that is elsewhere can be indexed by a tensor of the card
        args = [args[0], *args[2:]]
        if not isinstance(args[0], Pretended):
            return True
    single = 1 if name in ("aten::cat", "aten::stack") else 0
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    return any(not isinstance(each, Pretended) and each.dim() + single > 0 for each in tensors)
