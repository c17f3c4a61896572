"""Devices that compute: where training and predictions take place."""

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

_DRAWING = (torch.rand, torch.randn, torch.randint, torch.randperm)


def move(thing: Thing, device: torch.device) -> Thing:
    """Return tensors, lists of them or dataclasses that hold them on this device; networks stay.

    What is there already is returned as it is.
    """
    if isinstance(thing, Tensor):
        return cast(Thing, thing.to(device))
    if isinstance(thing, list | tuple):
        every = [move(each, device) for each in thing]
        same = all(new is old for new, old in zip(every, thing, strict=True))
        return thing if same else cast(Thing, type(thing)(every))
    if is_dataclass(thing) and not isinstance(thing, type):
        own = {each.name: getattr(thing, each.name) for each in fields(thing)}
        there = {name: move(part, device) for name, part in own.items()}
        changed = {name: part for name, part in there.items() if part is not own[name]}
        return cast(Thing, replace(thing, **changed)) if changed else thing
    return thing


@contextmanager
def compute_on(device: torch.device) -> Iterator[None]:
    """Make new tensors on this device for the time of the block, unless a device is named.

    So what computes with tensors of a device need not say at every new one where it belongs. On the
    processor nothing changes.
    """
    if device.type == "cpu":
        yield
        return
    with device, _Drawing(device):
        yield


class _Drawing(TorchFunctionMode):
    """Lets the processor draw random numbers, which are then moved: a seed gives the same on any device."""

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
        """Run a function of PyTorch."""
        named = dict(kwargs or {})
        if func in _DRAWING and named.get("device") is None:
            return func(*args, **{**named, "device": CPU}).to(self.device)
        return func(*args, **named)


def device_of(name: object) -> torch.device:
    """Return the device of this name, if it is there; the processor for None.

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
    """``device_of`` for training: of several processes each computes on a card of its own."""
    device = device_of(name)
    if device.index is not None and device.type == "cuda" and not process_group().is_single:
        raise InputError(
            f"{option_name('device', name)} would be the card of every process; with "
            f"{option_name('device', 'cuda')} each has its own"
        )
    return device
