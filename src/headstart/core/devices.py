"""Devices on which predictions are computed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import torch

from headstart.core.heads import Heads
from headstart.core.states import RowStates
from headstart.errors import InputError, argument

Batch = TypeVar("Batch", Heads, RowStates)


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return heads or states on this device."""
    parts = ((each.name, getattr(batch, each.name)) for each in fields(batch))
    there: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in parts}
    return type(batch)(**there)


def device_of(name: object) -> torch.device:
    """Return the device of this name, if it is there; the processor for None.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name is None:
        return torch.device("cpu")
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"{argument('device')} must be 'cpu' or 'cuda', or 'cuda:1' and so on; got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"{argument('device', name)}: this build of torch ({torch.__version__}) finds no CUDA device; "
            f"use {argument('device', 'cpu')}, or install torch with CUDA on a machine that has one"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"{argument('device', name)}: the CUDA devices here are numbered 0 to {count - 1}")
    return device
