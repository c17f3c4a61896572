"""Devices: find the CPU or GPU for training and prediction, and move data to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headstart.distributed import process_group
from headstart.errors import InputError, option_name

CPU = torch.device("cpu")

Thing = TypeVar("Thing")

_RANDOM_FUNCTIONS = (torch.rand, torch.randn, torch.randint, torch.randperm)


def move(thing: Thing, device: torch.device) -> Thing:
    """Return tensors, or lists or dataclasses of tensors, on ``device``; networks are not moved.

    An object that is already on ``device`` is returned unchanged.
    """
    if isinstance(thing, Tensor):
        return cast(Thing, thing.to(device))
    if isinstance(thing, list | tuple):
        moved = [move(item, device) for item in thing]
        same = all(new is old for new, old in zip(moved, thing, strict=True))
        return thing if same else cast(Thing, type(thing)(moved))
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {field.name: getattr(thing, field.name) for field in fields(thing)}
        moved_parts = {name: move(part, device) for name, part in parts.items()}
        changed = {name: part for name, part in moved_parts.items() if part is not parts[name]}
        return cast(Thing, replace(thing, **changed)) if changed else thing
    return thing


@contextmanager
def compute_on(device: torch.device) -> Iterator[None]:
    """Create new tensors in the ``with`` block on ``device``, unless a call names another device."""
    if device.type == "cpu":
        yield
        return
    with device, _RandomFromCPU(device):
        yield


class _RandomFromCPU(TorchFunctionMode):
    """Draw random numbers on the CPU and move them, so that a seed gives the same numbers on any device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``; draw its random numbers on the CPU."""
        options = dict(kwargs or {})
        if func in _RANDOM_FUNCTIONS and options.get("device") is None:
            return func(*args, **{**options, "device": CPU}).to(self.device)
        return func(*args, **options)


def device_of(name: object) -> torch.device:
    """Return the device called ``name`` if it is available; the CPU for None.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if name is None:
        return CPU
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(
            f"{option_name('device')} must be 'cpu' or 'cuda', or 'cuda:1' and so on; got {name!r}"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"{option_name('device', name)}: this build of torch ({torch.__version__}) finds no CUDA device; "
            f"use {option_name('device', 'cpu')}, or install torch with CUDA on a machine that has one"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(
            f"{option_name('device', name)}: the CUDA devices here are numbered 0 to {count - 1}"
        )
    return device


def training_device(name: object) -> torch.device:
    """Return the device for training; each of several processes must have its own GPU."""
    device = device_of(name)
    if device.index is not None and device.type == "cuda" and not process_group().is_single:
        raise InputError(
            f"{option_name('device', name)} would be the card of every process; with "
            f"{option_name('device', 'cuda')} each has its own"
        )
    return device
