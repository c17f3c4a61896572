"""Small networks whose initial values and dropout do not depend on the device or the number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from headstart.linalg.array_ops import Array

_LOADING = ContextVar("loading", default=False)


@contextmanager
def loading() -> Iterator[None]:
    """Let ``initial_tensor`` return uninitialised tensors in this block: a saved model replaces them."""
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def initial_tensor(make: Callable[[], Tensor], *sizes: int) -> Tensor:
    """Return ``make()``, a tensor of these ``sizes``; within ``loading``, an uninitialised tensor.

    Use it for parameters and saved buffers whose size grows with the features, so that opening a model does
    not take time to initialise them.

    >>> initial_tensor(lambda: torch.ones(2, 3), 2, 3).sum()
    tensor(6.)
    >>> with loading():
    ...     initial_tensor(lambda: torch.ones(2, 3), 2, 3).shape
    torch.Size([2, 3])
    """
    return torch.empty(sizes) if _LOADING.get() else make()


@dataclass(frozen=True)
class _Share:
    """Part of a batch that the current thread or process computes."""

    start: int
    whole: int
    generator: torch.Generator


_share: ContextVar[_Share | None] = ContextVar("share", default=None)


@contextmanager
def batch_share(start: int, whole: int, seed: int) -> Iterator[None]:
    """Declare that inputs in this block are the lines from ``start`` on of a batch of ``whole`` lines.

    Threads and processes with other parts of the batch pass the same ``seed``.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    token = _share.set(_Share(start, whole, generator))
    try:
        yield
    finally:
        _share.reset(token)


class SharedDropout(nn.Dropout):
    """Dropout whose mask does not depend on the division of a batch into parts (``batch_share``)."""

    def forward(self, input: Tensor) -> Tensor:
        """Set some of the inputs (lines, width) to 0 in training."""
        share = _share.get()
        if not self.training or share is None:
            dropped: Tensor = super().forward(input)
            return dropped
        # Draw on the CPU, so that the mask does not depend on the device.
        numbers = torch.rand(share.whole, *input.shape[1:], generator=share.generator, device="cpu")
        mask = (numbers >= self.p)[share.start : share.start + len(input)].to(input)
        return input * mask / (1 - self.p)


def mlp(sizes: list[int], *, last: bool = False) -> nn.Sequential:
    """Build linear layers of the given ``sizes`` with ReLU between them, and after the last if ``last``."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


Layers = tuple[tuple[Array, Array], ...]
"""The weights (inputs, outputs) and biases (outputs,) of the linear layers of a network, in numpy."""


@torch.no_grad()
def copy_layers(network: nn.Module | None) -> Layers:
    """Copy the layers of a network built by ``mlp``, for ``apply_layers``; no layers for None."""
    layers = [] if network is None else [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return tuple(
        (np.ascontiguousarray(layer.weight.numpy().T), layer.bias.numpy().copy()) for layer in layers
    )


def apply_layers(layers: Layers, inputs: Array) -> Array:
    """Apply a network without an activation after its last layer to ``inputs`` (…, inputs), in numpy."""
    outputs = inputs
    for number, (weight, bias) in enumerate(layers):
        outputs = (np.maximum(outputs, 0, out=outputs) if number else outputs) @ weight
        outputs += bias
    return outputs
