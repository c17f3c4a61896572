"""Heads, states and sums as text, for a journal: what a change came to need not be computed again."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads, OneHead
from headstart.core.states import OneState, RowStates
from headstart.errors import InputError

Packed = dict[str, Any]  # by the name of an array: its type, shape and content


def packed(parts: Heads | RowStates) -> Packed:
    """All arrays of heads or states."""
    return {name: packed_array(part.numpy()) for name, part in vars(parts).items() if part is not None}


def heads_in(given: Packed) -> Heads:
    """The heads that were packed."""
    return Heads(**{name: tensor_in(each) for name, each in given.items()})


def states_in(given: Packed) -> RowStates:
    """The states that were packed."""
    return RowStates(**{name: tensor_in(each) for name, each in given.items()})


def packed_array(array: NDArray[Any]) -> list[Any]:
    """The type, shape and content of an array."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return [little.dtype.str, list(array.shape), base64.b64encode(little.tobytes()).decode()]


def tensor_in(given: list[Any]) -> Tensor:
    """The array that was packed, which must be finite."""
    return torch.from_numpy(_array_in(given))


def one_head_in(given: Packed) -> OneHead | None:
    """The only head that was packed, if it has all of its parts."""
    return OneHead(**_first(given)) if len(given) == len(OneHead._fields) else None


def one_state_in(given: Packed) -> OneState:
    """The only state that was packed."""
    return OneState(**_first(given))


def _first(given: Packed) -> dict[str, Any]:
    return {name: _array_in(each)[0] for name, each in given.items()}


def _array_in(given: list[Any]) -> NDArray[Any]:
    kind, shape, text = given
    array = np.frombuffer(bytearray(base64.b64decode(text)), kind).reshape(shape)
    if not np.isfinite(array).all():
        raise InputError("it has numbers that are not finite")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
