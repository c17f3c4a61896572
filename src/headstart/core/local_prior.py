"""The prior of the weights of a local part: one small network, trained once on many tables.

Known feature j has the weight a_j in the local part of a new feature (``core.neighbours``). Its prior is
N(0, t_j), in units of the variance of an observation. The network reads ``INPUTS`` of each known feature.
They depend neither on the rotation of the factors nor on the units of a table, so that the network is the
same for every table:

    t_j = t·exp(3·output)

where t is the prior variance at which the local part explains ``PRIOR_SHARE`` of the variance of an
observation. docs/local_prior.md is the card of the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from importlib.resources import as_file, files
from typing import cast

import numpy as np
from torch import Tensor, nn

from headstart.linalg.array_ops import A, Array, namespace

PRIOR_SHARE = 0.3  # of the variance of an observation, explained by the local part at an output of 0

INPUTS = (
    # of the known feature
    "frequency", "log observations", "residual size",
    # of the table, means over its known features
    "mean frequency", "mean residual size", "log features", "log rows", "log observations of a row",
    # of its metadata: does it say which residuals are similar?
    "metadata", "metadata strength", "metadata correlation", "metadata sign",
    # of the new feature and its context
    "log shots", "context size", "log largest gain", "new is binary",
    # of both features
    "known is binary", "cosine", "squared cosine", "similarity",
    # agreement of the known feature with the context
    "agreement", "size of the agreement", "correlation", "squared correlation", "log shots in common",
    "relative gain", "missing gain", "log gain",
)  # fmt: skip

_UNITS = 32  # in each of two hidden layers

_LARGEST_INPUT = 3.0  # inputs are scaled such that few are larger

_MOST_LOG_VARIANCE = 8.0


Layers = Sequence[tuple[A, A]]  # the weight (outputs, inputs) and the bias (outputs,) of each layer


def relative_variance(inputs: A, layers: Layers[A]) -> A:
    """Return t_j / t of known features with ``inputs`` (…, features, inputs): (…, features)."""
    xp, (last_weight, last_bias) = namespace(inputs), layers[-1]
    hidden = xp.clip(inputs, -_LARGEST_INPUT, _LARGEST_INPUT)
    for weight, bias in layers[:-1]:
        outputs = hidden @ weight.T + bias
        hidden = outputs / (1 + xp.exp(-outputs))  # SiLU
    outputs = (hidden @ last_weight.T + last_bias)[..., 0]
    return cast(A, xp.exp(xp.clip(3 * outputs, -_MOST_LOG_VARIANCE, _MOST_LOG_VARIANCE)))


class LocalPrior(nn.Module):
    """The network from ``INPUTS`` to the prior variance of weights, to be trained."""

    def __init__(self) -> None:
        super().__init__()
        sizes = itertools.pairwise([len(INPUTS), _UNITS, _UNITS, 1])
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in sizes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the ``relative_variance`` of known features: (…, features)."""
        layers = [cast(nn.Linear, layer) for layer in self.layers]
        return relative_variance(inputs, [(layer.weight, layer.bias) for layer in layers])


def posterior_weights(variance: A, residuals: A, context: A, weights: A) -> A:
    """Return E[a | r] = T·Rᵀ·(R·T·Rᵀ + W⁻¹)⁻¹·r: (…, features).

    Parameters
    ----------
    variance : array
        The diagonal of T: (…, features).
    residuals : array
        R, of known features at the rows of the context, 0 where not observed: (…, shots, features).
    context : array
        r, the residuals of the new feature: (…, shots).
    weights : array
        The diagonal of W, which is positive: (…, shots).
    """
    xp, (shots, features) = namespace(residuals), residuals.shape[-2:]
    root = xp.sqrt(variance)
    scaled = residuals * xp.sqrt(weights)[..., None] * root[..., None, :]  # W^½·R·T^½ =: A
    transposed, target = xp.swapaxes(scaled, -1, -2), (xp.sqrt(weights) * context)[..., None]
    identity = xp.eye(min(shots, features), dtype=scaled.dtype)
    if shots <= features:  # Aᵀ·(A·Aᵀ + I)⁻¹ = (Aᵀ·A + I)⁻¹·Aᵀ: take the smaller system
        change = transposed @ xp.linalg.solve(scaled @ transposed + identity, target)
    else:
        change = xp.linalg.solve(transposed @ scaled + identity, transposed @ target)
    return cast(A, root * change[..., 0])


@cache
def shared_layers() -> Layers[Array]:
    """Return the layers of the trained network of the package, in double precision."""
    from safetensors.numpy import load_file

    with as_file(files("headstart.core") / "local_prior.safetensors") as path:
        tensors = {name: tensor.astype(np.float64) for name, tensor in load_file(path).items()}
    names = sorted({name.rpartition(".")[0] for name in tensors})
    return [(tensors[f"{name}.weight"], tensors[f"{name}.bias"]) for name in names]
