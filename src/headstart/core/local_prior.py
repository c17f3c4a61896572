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

from functools import cache
from importlib.resources import as_file, files

import torch
from torch import Tensor, nn

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


class LocalPrior(nn.Module):
    """The network from ``INPUTS`` to the prior variance of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(len(INPUTS), _UNITS),
            nn.SiLU(),
            nn.Linear(_UNITS, _UNITS),
            nn.SiLU(),
            nn.Linear(_UNITS, 1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return t_j / t of known features with ``inputs`` (…, features, inputs): (…, features)."""
        outputs: Tensor = self.layers(inputs.clamp(-_LARGEST_INPUT, _LARGEST_INPUT))[..., 0]
        return (3 * outputs).clamp(-_MOST_LOG_VARIANCE, _MOST_LOG_VARIANCE).exp()


def posterior_weights(variance: Tensor, residuals: Tensor, context: Tensor, weights: Tensor) -> Tensor:
    """Return E[a | r] = T·Rᵀ·(R·T·Rᵀ + W⁻¹)⁻¹·r: (…, features).

    Parameters
    ----------
    variance : Tensor
        The diagonal of T: (…, features).
    residuals : Tensor
        R, of known features at the rows of the context, 0 where not observed: (…, shots, features).
    context : Tensor
        r, the residuals of the new feature: (…, shots).
    weights : Tensor
        The diagonal of W, which is positive: (…, shots).
    """
    shots, features = residuals.shape[-2:]
    root = variance.sqrt()
    scaled = residuals * weights.sqrt()[..., None] * root[..., None, :]  # W^½·R·T^½ =: A
    target = (weights.sqrt() * context)[..., None]
    if shots <= features:  # Aᵀ·(A·Aᵀ + I)⁻¹ = (Aᵀ·A + I)⁻¹·Aᵀ: take the smaller system
        change = scaled.mT @ torch.linalg.solve(scaled @ scaled.mT + torch.eye(shots).to(scaled), target)
    else:
        change = torch.linalg.solve(scaled.mT @ scaled + torch.eye(features).to(scaled), scaled.mT @ target)
    posterior: Tensor = root * change[..., 0]
    return posterior


@cache
def shared_prior() -> LocalPrior:
    """Return the trained network of the package, in double precision."""
    from safetensors.torch import load_file

    prior = LocalPrior()
    with as_file(files("headstart.core") / "local_prior.safetensors") as path:
        prior.load_state_dict(load_file(path))
    return prior.double().eval().requires_grad_(False)
