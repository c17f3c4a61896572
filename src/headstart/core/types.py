"""Define the data that passes between parts: row states, heads, feature batches, knowledge."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.distributed import process_group
from headstart.linalg.packed import append_one, diagonals, pack, squares, unpack
from headstart.table.cells import Cells

VALIDATION_SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def interpolate(marks: Tensor, shots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each number of shots the marks at its left and right, and the weight of the right one.

    Interpolation is linear in log(1 + shots), and constant past the last mark.

    >>> left, right, share = interpolate(torch.tensor([0, 1, 3]), torch.tensor([0, 3, 50]))
    >>> torch.lerp(left.float(), right.float(), share)
    tensor([0., 2., 2.])
    """
    places = marks.to(torch.float32).log1p()
    at = shots.to(torch.float32).log1p().clamp(max=float(places[-1]))
    right = torch.bucketize(at, places).clamp(min(1, len(places) - 1), len(places) - 1)
    left = (right - 1).clamp(min=0)
    share = (at - places[left]) / (places[right] - places[left]).clamp(min=1e-9)
    return left, right, share.clamp(0, 1)


@dataclass(frozen=True)
class Description:
    """Encoded metadata; the columns that encode one metadata column are a group."""

    numbers: Tensor  # (features, columns)
    groups: list[Tensor]  # positions of columns

    @classmethod
    def of(cls, numbers: Tensor, widths: Sequence[int]) -> Description:
        """Build from encoded metadata columns of these ``widths``; if there are none, of one column."""
        widths = widths or (numbers.shape[1],)
        return cls(numbers, list(torch.split(torch.arange(numbers.shape[1]), list(widths))))

    def nonlinear_columns(self) -> Tensor:
        """Return the mask of columns that may have a nonlinear effect: numbers, not labels.

        A metadata column encoded by one or two columns is a number (the second marks missing values).
        """
        mask = torch.zeros(self.numbers.shape[1], dtype=torch.bool)
        for group in self.groups:
            if 0 < len(group) <= 2:
                first = self.numbers[:, int(group[0])]
                mask[int(group[0])] = bool(((first * (1 - first)).abs() > 1e-6).any())
        return mask

    def with_cubic_terms(self, bends: Tensor) -> Description:
        """Return the description with cubic terms of the columns in the mask ``bends``, each pair a group."""
        width = self.numbers.shape[1]
        pairs = [torch.tensor([width + i, 2 * width + i]) for i in torch.nonzero(bends)[:, 0].tolist()]
        return Description(add_cubic_terms(self.numbers, bends), [*self.groups, *pairs])

    def with_more(self, more: Tensor) -> Description:
        """Return the description with a further group of columns."""
        width = self.numbers.shape[1]
        group = torch.arange(width, width + more.shape[1])
        return Description(torch.cat([self.numbers, more], 1), [*self.groups, group])


def add_cubic_terms(numbers: Tensor, bends: Tensor) -> Tensor:
    """Append m·(1 − m) and m·(1 − m)·(1 − 2m) of columns, zero outside the mask: (features, 3 × columns).

    A number from 0 to 1, such as a scaled year, may have a nonlinear effect.

    >>> add_cubic_terms(torch.tensor([[0.5, 0.2]]), torch.tensor([False, True]))
    tensor([[0.5000, 0.2000, 0.0000, 0.1600, 0.0000, 0.0960]])
    """
    bend = torch.where(bends, numbers * (1 - numbers), 0.0)
    return torch.cat([numbers, bend, bend * (1 - 2 * numbers)], dim=1)


@dataclass(frozen=True)
class RowBelief:
    """A prior of some rows from their metadata, in addition to the backbone's prior of every row."""

    shift: Tensor  # (rows, width): added to the prior mean of a row's activation
    covariance: Tensor  # (width, width): of activations around that

    def take(self, rows: Tensor) -> RowBelief:
        """Return the prior of these rows."""
        return RowBelief(self.shift[rows], self.covariance)

    def double(self) -> RowBelief:
        """The same in double precision."""
        return RowBelief(self.shift.double(), self.covariance.double())


@dataclass(frozen=True)
class RowPrior:
    """A regression of rows' activations on the informative columns of their metadata."""

    matrix: Tensor  # (columns with bends, width)
    constant: Tensor  # (width,)
    covariance: Tensor  # (width, width)
    bends: Tensor  # (columns,): mask of the columns with cubic terms
    gains: Tensor  # (metadata columns,): the share of the error that each removes; 0 if it is not used

    def belief(self, encoded: Tensor) -> RowBelief:
        """Return the prior of rows with this encoded metadata (rows, columns)."""
        return RowBelief(add_cubic_terms(encoded, self.bends) @ self.matrix + self.constant, self.covariance)


class OneHead(NamedTuple):
    """One head, in numpy: the parts of ``Heads`` without their first dimension."""

    weight: NDArray[Any]
    bias: float
    covariance: NDArray[Any]
    noise: float

    def mean_squares(self) -> NDArray[Any]:
        """Return E[w²]: (width,)."""
        return self.weight**2 + self.covariance.take(_diagonal_positions(len(self.weight)))  # type: ignore[no-any-return]


@cache
def _diagonal_positions(size: int) -> NDArray[np.int64]:
    """Return the positions of the first ``size`` diagonal entries in a packed matrix."""
    ends = np.arange(1, size + 1)
    return ends * (ends + 1) // 2 - 1


@dataclass(frozen=True)
class Heads:
    """A batch of heads θ = (w, b): the prediction for a row is its kind's link of w·d + b.

    If an adapter gives uncertainty, ``covariance`` is that of (w, b), packed (``linalg.packed``), and
    ``noise`` the variance of the feature's observations at a row of usual noise.
    """

    weight: Tensor  # (features, width)
    bias: Tensor  # (features,)
    covariance: Tensor | None = None  # (features, (width + 1)·(width + 2)/2)
    noise: Tensor | None = None  # (features,)

    def __len__(self) -> int:
        return len(self.bias)

    def take(self, features: Tensor | slice) -> Heads:
        """Return the heads at these positions; those of a slice are not copied."""
        if isinstance(features, Tensor) and features.dtype == torch.int64:
            return self._each(lambda part: part.index_select(0, features))  # faster than an index
        return self._each(lambda part: part[features])

    def detach(self) -> Heads:
        """Return the same numbers, cut off from any gradient."""
        return self._each(lambda part: part.detach())

    def to(self, dtype: torch.dtype) -> Heads:
        """Return the heads in this precision."""
        return self._each(lambda part: part.to(dtype))

    def logits(self, activation: Tensor) -> Tensor:
        """Apply every head to every row's decoder activation: (rows, features)."""
        return torch.addmm(self.bias, activation, self.weight.T)

    @property
    def packed_covariance(self) -> Tensor:
        """The covariances, zero where heads have none: (features, packed)."""
        if self.covariance is not None:
            return self.covariance
        size = self.weight.shape[1] + 1
        return self.weight.new_zeros(len(self), size * (size + 1) // 2)

    def covariances(self, size: int) -> Tensor:
        """The covariances as matrices: (features, size, size)."""
        return unpack(self.packed_covariance, size)

    def mean_squares(self) -> Tensor:
        """Return E[w²], the factor of an activation's variance in that of the output: (features, width)."""
        return self.weight**2 + diagonals(self.packed_covariance, self.weight.shape[1] + 1)[:, :-1]

    def plain(self, width: int) -> Heads:
        """Return only w and b, with zeros for activations past those the heads were made for."""
        more = self.weight.new_zeros(len(self), width - self.weight.shape[1])
        return Heads(torch.cat([self.weight, more], dim=1), self.bias)

    def parts(self) -> list[Tensor]:
        """Return the tensors of the heads, without those that are None."""
        parts = (self.weight, self.bias, self.covariance, self.noise)
        return [part for part in parts if part is not None]

    def replaced(self, features: Tensor, heads: Heads) -> Heads:
        """Return the heads with others, of the same parts, at these positions."""
        after = self._each(torch.clone)
        for part, other in zip(after.parts(), heads.parts(), strict=True):
            part[features] = other.to(part.dtype)
        return after

    def grown(self, more: int) -> Heads:
        """Return the heads followed by ``more`` heads of zeros."""
        if more == 0:  # nothing needs to be copied
            return self
        return self._each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def _each(self, change) -> Heads:  # type: ignore[no-untyped-def]
        covariance, noise = (None if part is None else change(part) for part in (self.covariance, self.noise))
        return Heads(change(self.weight), change(self.bias), covariance, noise)

    @classmethod
    def concatenate(cls, parts: list[Heads]) -> Heads:
        """Join batches of heads; covariance and noise are dropped unless all have them."""
        covariances = [part.covariance for part in parts if part.covariance is not None]
        noises = [part.noise for part in parts if part.noise is not None]
        return cls(
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
            torch.cat(covariances) if len(covariances) == len(parts) else None,
            torch.cat(noises) if len(noises) == len(parts) else None,
        )


class OneState(NamedTuple):
    """The state of one row, in numpy: the parts of ``RowStates`` without their first dimension."""

    code: NDArray[Any]
    code_std: NDArray[Any]
    activation: NDArray[Any]
    noise: float | None = None
    variance: NDArray[Any] | None = None

    def parts(self) -> list[Any]:
        """Return the parts that are not None, in the order of ``RowStates.parts``."""
        return [part for part in self if part is not None]


class OneRow(NamedTuple):
    """The observations of one row in numpy, each with the head of its feature."""

    values: NDArray[Any]  # (n,): on the models' scale
    heads: NDArray[Any]  # (n, width + 1): the means of (w, b), in double precision
    covariance: NDArray[Any]  # (n, packed): of (w, b), in single precision
    noise: NDArray[Any]  # (n,): the variance of an observation at a row of usual noise
    kinds: NDArray[Any]  # (n,): of the features
    weights: NDArray[Any] | None = None  # (n,): by age; None: all 1


@dataclass(frozen=True)
class RowParts:
    """The activation of one row as a sum of contributions, in double precision."""

    baseline: Tensor  # (width,): the activation of a row without observations
    choice: Tensor  # (width,): because of which features the row observed
    metadata: Tensor  # (width,): because of the row's metadata
    observations: Tensor  # (n, width): because of each value, in the order of the row's cells

    @property
    def total(self) -> Tensor:
        """The row's activation: (width,)."""
        return self.baseline + self.choice + self.metadata + self.observations.sum(0)


@dataclass(frozen=True)
class RowStates:
    """The states of some rows, computed by a backbone."""

    code: Tensor  # (rows, latent): the input of the hypernetwork
    code_std: Tensor  # (rows, latent): standard deviation of the code
    activation: Tensor  # (rows, width): the input of heads
    noise: Tensor | None = None  # (rows,): noise of a row's observations, relative to the usual
    variance: Tensor | None = None  # (rows, width): of the activation

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Tensor | slice) -> RowStates:
        """Return the states of these rows; those of a slice are not copied."""
        if isinstance(rows, Tensor) and rows.dtype == torch.int64:
            return self.each(lambda part: part.index_select(0, rows))  # faster than an index
        return self.each(lambda part: part[rows])

    def parts(self) -> list[Tensor]:
        """Return the tensors of the states, without those that are None."""
        parts = (self.code, self.code_std, self.activation, self.noise, self.variance)
        return [part for part in parts if part is not None]

    def room_for(self, rows: int) -> RowStates:
        """Return uninitialised states of the same parts for ``rows`` rows."""
        return self.each(lambda part: part.new_empty(rows, *part.shape[1:]))

    def put(self, start: int, states: RowStates) -> None:
        """Overwrite the states from ``start`` on in place; only for states that nothing has read yet."""
        for part, other in zip(self.parts(), states.parts(), strict=True):
            part[start : start + len(states)] = other

    def to(self, dtype: torch.dtype) -> RowStates:
        """Return the states in this precision."""
        return self.each(lambda part: part.to(dtype))

    def detach(self) -> RowStates:
        """Return the same numbers, cut off from any gradient."""
        return self.each(lambda part: part.detach())

    def grown(self, more: int) -> RowStates:
        """Return the states followed by ``more`` states of zeros."""
        if more == 0:  # nothing needs to be copied
            return self
        return self.each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def each(self, change: Callable[[Tensor], Tensor]) -> RowStates:
        """Return states with ``change`` applied to every part."""
        noise, variance = (None if part is None else change(part) for part in (self.noise, self.variance))
        return RowStates(change(self.code), change(self.code_std), change(self.activation), noise, variance)

    @classmethod
    def of_one(cls, state: OneState, dtype: torch.dtype) -> RowStates:
        """Build a batch of one row."""
        code, code_std, activation = (torch.tensor(part, dtype=dtype)[None] for part in state[:3])
        noise = None if state.noise is None else torch.tensor([state.noise], dtype=dtype)
        variance = None if state.variance is None else torch.tensor(state.variance, dtype=dtype)[None]
        return cls(code, code_std, activation, noise, variance)

    @classmethod
    def concatenate(cls, parts: list[RowStates]) -> RowStates:
        """Join batches of rows into one."""
        noises = [part.noise for part in parts if part.noise is not None]
        variances = [part.variance for part in parts if part.variance is not None]
        return cls(
            torch.cat([part.code for part in parts]),
            torch.cat([part.code_std for part in parts]),
            torch.cat([part.activation for part in parts]),
            torch.cat(noises) if len(noises) == len(parts) else None,
            torch.cat(variances) if len(variances) == len(parts) else None,
        )


_AT_ONCE = 4096

_LAST: list[tuple[weakref.ref[RowStates], Tensor]] = []  # of the states asked for last

_REMEMBERING = threading.Lock()


def second_moment(states: RowStates) -> Tensor:
    """Return E[a·aᵀ] of the rows' activations with a 1, in double precision: (width + 1, width + 1).

    The result for the last states is cached: states seldom change between two calls.
    """
    with _REMEMBERING:
        for reference, moment in _LAST:
            if reference() is states:
                return moment
    size = states.activation.shape[1] + 1
    total = torch.zeros(size, size, dtype=torch.float64)
    for start in range(0, len(states), _AT_ONCE):
        rows = append_one(states.activation[start : start + _AT_ONCE].double())
        total += rows.T @ rows
    found = total / max(1, len(states))
    with _REMEMBERING:
        _LAST[:] = [(weakref.ref(states), found)]
    return found


def mix_heads(heads: Heads, other: Heads, share: Tensor) -> Heads:
    """Return mean and covariance of a mixture: ``share`` (features,) of ``heads``, the rest of ``other``.

    The other heads may read fewer activations, the first ones of those that ``heads`` read. The covariance
    includes the difference of the means, so that the mixture's predictions are a mixture of predictions.
    """
    other, part = pad_heads(other, heads.weight.shape[1]), share[:, None]
    apart = torch.cat([heads.weight - other.weight, (heads.bias - other.bias)[:, None]], dim=1)
    covariance = torch.lerp(other.packed_covariance, heads.packed_covariance, part)
    covariance = covariance + part * (1 - part) * squares(apart)
    noise = None
    if heads.noise is not None and other.noise is not None:
        noise = torch.lerp(other.noise, heads.noise, share)
    weight = torch.lerp(other.weight, heads.weight, part)
    return Heads(weight, torch.lerp(other.bias, heads.bias, share), covariance, noise)


def pad_heads(heads: Heads, width: int) -> Heads:
    """Return the heads over ``width`` activations, with zeros for those they do not read."""
    plain = heads.plain(width)
    covariance = plain.weight.new_zeros(len(plain), (width + 1) * (width + 2) // 2)
    covariance[:, _places(heads.weight.shape[1], width)] = heads.packed_covariance
    return Heads(plain.weight, plain.bias, covariance, heads.noise)


def _places(fewer: int, width: int) -> Tensor:
    """Return the positions of a smaller packed matrix's entries in a larger one; both end with the bias."""
    positions = unpack(torch.arange((width + 1) * (width + 2) // 2), width + 1)
    columns = torch.cat([torch.arange(fewer), torch.tensor([width])])
    return pack(positions[columns][:, columns])


@dataclass(frozen=True)
class FeatureBatch:
    """Features treated as new: their contexts, metadata and kinds.

    ``cells`` has one line per feature, with any number of shots each; its ``index`` points at rows of
    the ``RowStates`` that go with the batch.
    """

    cells: Cells
    metadata: Tensor  # (features, metadata width); width 0 where there is none
    kinds: Tensor  # (features,): the kind of each
    # (features, 2): offset and span of a feature whose own centre and scale are unknown, in units that all
    # real features share; 0 and 0 if they are known. None: all known.
    units: Tensor | None = None
    positions: Tensor | None = None  # (features,): of the backbone's own features, when treated as new
    known: Tensor | None = None  # (features,): positions in the backbone, −1 for new. None: all new

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def unscaled(self) -> Tensor:
        """Whether each feature's own centre and scale are unknown: (features,)."""
        return torch.zeros_like(self.kinds, dtype=torch.bool) if self.units is None else self.units[:, 1] > 0

    @property
    def shots(self) -> Tensor:
        """Number of observations of each feature: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor, cells: Cells | None = None) -> FeatureBatch:
        """Return these features, in this order, with their observations or with ``cells``."""
        optional = (self.units, self.positions, self.known)
        return FeatureBatch(
            self.cells.take(features) if cells is None else cells,
            self.metadata[features],
            self.kinds[features],
            *(None if part is None else part[features] for part in optional),
        )

    def observing(self, cells: Cells) -> FeatureBatch:
        """Return the same features with other observations."""
        return replace(self, cells=cells)


@dataclass(frozen=True)
class Scales:
    """Centres and scales of the real features that a backbone knows, in units that all share."""

    centre: Tensor  # (real features,)
    scale: Tensor  # (real features,)


@dataclass(frozen=True)
class Knowledge:
    """The data that an adapter may learn from before it sees a new feature.

    If several processes train together, each has the states and cells of its own rows only.
    """

    states: RowStates  # of every row of the table
    cells: Cells  # rows × the backbone's features, on the models' scale
    heads: Heads  # of the backbone's features
    metadata: Tensor  # (features, metadata width) of the backbone's features
    kinds: Tensor  # (features,): their kinds
    likelihood: Likelihood
    widths: tuple[int, ...] = ()  # number of encoded columns of each metadata column
    scales: Scales | None = None  # of the backbone's real features, where each has its own
    new_heads: Heads | None = None  # of the same features as if they were new, for priors to learn from
    # (sampled,): the positions of the features that have such heads. None: all.
    trained_on: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.widths and self.metadata.shape[1]:  # metadata of unknown origin is one column
            object.__setattr__(self, "widths", (self.metadata.shape[1],))

    @property
    def device(self) -> torch.device:
        """The device of the tensors, on which adapters compute."""
        return self.kinds.device

    def count_shots(self) -> Tensor:
        """Count each feature's observations in all processes, each of which must call it: (features,)."""
        if "_shots" not in vars(self):  # a cache beside the fields
            counts = torch.bincount(self.cells.index, minlength=len(self.kinds))
            vars(self)["_shots"] = process_group().all_reduce_sum(counts).to(torch.float32)
        shots: Tensor = vars(self)["_shots"]
        return shots
