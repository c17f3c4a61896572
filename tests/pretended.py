"""A pretended device: what a graphics card would refuse is refused, where there is none.

Tensors that are moved to it compute as ever, but refuse to meet tensors that were left behind, and to become
NumPy arrays before they are moved back. So a missing ``.to(device)`` or ``.cpu()`` is found on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")  # the only device besides the processor that any build of torch can name
# A card takes indices from the processor; a copy may cross from one to the other.
_CROSSING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::copy_")


class Pretended(Tensor):
    """A tensor on the pretended device; its numbers are in ``inner``."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, Pretended)]
    left = [each for each in tensors if not isinstance(each, Pretended) and each.dim() > 0]
    name = func._schema.name
    if there and left and name not in _CROSSING:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    own, named = tree_map_only(Pretended, lambda each: each.inner, (args, dict(kwargs)))
    goes = bool(there)
    if kwargs.get("device") is not None:
        goes, named["device"] = torch.device(kwargs["device"]) == DEVICE, torch.device("cpu")
    found = func(*own, **named)
    if name.endswith("_") and there:  # it was computed in place
        return args[0]
    return tree_map_only(Tensor, Pretended, found) if goes else found
