"""Predictions of single cells in few steps: for one cell, the overhead of tensors is most of the work."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.core.types import interpolate
from headstart.linalg.packed import triangle_indices
from headstart.model.features import Feature
from headstart.model.state import ModelState
from headstart.table.kinds import KindType
from headstart.training.calibration import LEVELS, USUAL_LEVEL


class QuickCell(NamedTuple):
    """The prediction of one cell, in the data's own units."""

    mean: float
    std: float
    low: float
    high: float


def quick_cell(fitted: ModelState, row: str, name: str, level: float) -> QuickCell:
    """Predict one cell; equal to ``Headstart.predict`` up to rounding.

    Parameters
    ----------
    fitted : Fitted
        The model.
    row, name : str
        A row and a feature that it knows.
    level : float
        The probability that the interval holds the value.
    """
    state = fitted.roster.arrays(fitted.rows.position(row))
    feature, parts = fitted.catalogue.arrays(name)
    kind = feature.kind
    factors, slope, shift = _corrections(fitted, feature)
    output, variance, noise = _output(fitted, state.activation, state.variance, state.noise, parts, feature)
    mean, spread = _linked(fitted, feature, output, variance, noise)
    if kind.type == KindType.BINARY:
        chance = min(max(mean, 1e-4), 1 - 1e-4)
        mean = 1 / (1 + math.exp(-(math.log(chance / (1 - chance)) * slope + shift)))
        tail = 0.5 - level / 2
        return QuickCell(mean, math.sqrt(mean * (1 - mean)), float(mean > 1 - tail), float(mean >= tail))
    std = factors[USUAL_LEVEL] * math.sqrt(max(spread, 0.0)) * kind.span
    mean = min(max(mean * kind.span + kind.offset, kind.low), kind.high)
    wider = float(np.interp(level, LEVELS, factors)) / factors[USUAL_LEVEL]
    reach = _quantile(level) * std * wider
    return QuickCell(
        mean, std, min(max(mean - reach, kind.low), kind.high), min(max(mean + reach, kind.low), kind.high)
    )


def _output(
    fitted: ModelState,
    activation: NDArray[np.float32],
    doubt: NDArray[np.float32] | None,
    noisy: float,
    parts: list[NDArray[np.float32]],
    feature: Feature,
) -> tuple[float, float, float]:
    """Mean and variance of the output w·d + b, and the variance that an observation adds."""
    weight = parts[0].astype(np.float64)
    vector = np.append(activation, np.float32(1)).astype(np.float64)
    variance, own = 0.0, 0.0
    if doubt is not None:
        spread = doubt.astype(np.float64)
        variance = float(spread @ weight**2)
    if len(parts) > 2:
        down, across, twice, diagonal = _packed(len(vector))
        squares = vector[down] * vector[across] * twice
        if doubt is not None:
            squares[diagonal[: len(spread)]] += spread
        own = max(0.0, float(squares @ parts[2].astype(np.float64)))
    noise = float(parts[3]) if len(parts) > 3 else _usual_noise(fitted, feature)
    return float(weight @ vector[:-1]) + float(parts[1]), variance + own, noise * noisy


def _linked(
    fitted: ModelState, feature: Feature, output: float, variance: float, noise: float
) -> tuple[float, float]:
    """Mean and variance of the value on the models' scale; see ``Likelihood.predictive``."""
    kind = _modelled(fitted, feature)
    binary = kind == KindType.BINARY
    if not binary and not (
        kind == KindType.RATING and fitted.knowledge.likelihood.config.rating_link == "sigmoid"
    ):
        return output, variance + noise
    spread = variance + (noise if binary else 0.0)
    mean = 1 / (1 + math.exp(-output / math.sqrt(1 + math.pi / 8 * spread)))
    slope = mean * (1 - mean)
    return mean, slope if binary else slope**2 * variance + noise


def _modelled(fitted: ModelState, feature: Feature) -> int:
    """The kind as the model takes it."""
    if feature.kind.type != KindType.BINARY or fitted.settings.binary_link != "identity":
        return feature.kind.type
    return KindType.BINARY if KindType.BINARY in fitted.knowledge.kinds else KindType.RATING


@torch.no_grad()
def _usual_noise(fitted: ModelState, feature: Feature) -> float:
    return float(fitted.knowledge.likelihood.noise(torch.tensor(int(_modelled(fitted, feature)))))


def _corrections(fitted: ModelState, feature: Feature) -> tuple[list[float], float, float]:
    """The factors of all levels, and slope and shift of a probability, for this kind and number of shots."""
    return _calibrated(_Calibrated(fitted), feature.shots, int(_modelled(fitted, feature)))


class _Calibrated:
    """A model's calibration as the key of a cache: the same for all moments of one fitted model."""

    def __init__(self, fitted: ModelState) -> None:
        self.calibration = fitted.calibration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Calibrated) and other.calibration is self.calibration

    def __hash__(self) -> int:
        return id(self.calibration)


@lru_cache(maxsize=4096)
def _calibrated(held: _Calibrated, shots: int, kind: int) -> tuple[list[float], float, float]:
    calibration = held.calibration
    factors = calibration.factor(torch.tensor([shots]), torch.tensor([kind]))[0].double().tolist()
    left, right, share = interpolate(calibration.marks, torch.tensor([shots]))
    slope, shift = (
        float(torch.lerp(each[left], each[right], share)) for each in (calibration.slopes, calibration.shifts)
    )
    return factors, slope, shift


@lru_cache(maxsize=8)
def _packed(
    size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    down, across = (part.numpy() for part in triangle_indices(size))
    return down, across, np.where(down == across, 1.0, 2.0), np.flatnonzero(down == across)


@lru_cache(maxsize=64)
def _quantile(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))
