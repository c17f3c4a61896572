"""Define the data that passes between parts: row states, heads, feature batches, knowledge."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
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
    """For each number of shots the mark at its left, that at its right, and how near it is to the right one.

    Distances are those of log(1 + shots). Past the last mark, what holds there still holds.

    >>> left, right, share = between(torch.tensor([0, 1, 3]), torch.tensor([0, 3, 50]))
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
    """Encoded metadata, and which of its columns came from one metadata column: a group."""

    numbers: Tensor  # (features, columns)
    groups: list[Tensor]  # positions of columns

    @classmethod
    def of(cls, numbers: Tensor, widths: Sequence[int]) -> Description:
        """Metadata columns side by side, each as many columns wide as ``widths`` says; one if it is empty."""
        widths = widths or (numbers.shape[1],)
        return cls(numbers, list(torch.split(torch.arange(numbers.shape[1]), list(widths))))

    def nonlinear_columns(self) -> Tensor:
        """A mask of the columns that may matter other than by a straight line: numbers, not labels.

        A metadata column of one or two columns is a number (the second says that it is missing).
        """
        mask = torch.zeros(self.numbers.shape[1], dtype=torch.bool)
        for group in self.groups:
            if 0 < len(group) <= 2:
                first = self.numbers[:, int(group[0])]
                mask[int(group[0])] = bool(((first * (1 - first)).abs() > 1e-6).any())
        return mask

    def with_cubic_terms(self, bends: Tensor) -> Description:
        """Return the description with the bends of the columns in this mask, each pair a group of its own."""
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

    A number from 0 to 1, such as a scaled year, may matter other than by a straight line.

    >>> bent(torch.tensor([[0.5, 0.2]]), torch.tensor([False, True]))
    tensor([[0.5000, 0.2000, 0.0000, 0.1600, 0.0000, 0.0960]])
    """
    bend = torch.where(bends, numbers * (1 - numbers), 0.0)
    return torch.cat([numbers, bend, bend * (1 - 2 * numbers)], dim=1)


@dataclass(frozen=True)
class RowBelief:
    """What is believed of some rows beside what their backbone believes of every row."""

    shift: Tensor  # (rows, width): added to the prior mean of a row's activation
    covariance: Tensor  # (width, width): of activations around that

    def take(self, rows: Tensor) -> RowBelief:
        """Return what is believed of these rows."""
        return RowBelief(self.shift[rows], self.covariance)

    def double(self) -> RowBelief:
        """The same in double precision."""
        return RowBelief(self.shift.double(), self.covariance.double())


@dataclass(frozen=True)
class RowPrior:
    """A regression of rows' activations on the columns of their metadata that tell something."""

    matrix: Tensor  # (columns with bends, width)
    constant: Tensor  # (width,)
    covariance: Tensor  # (width, width)
    bends: Tensor  # (columns,): mask of the columns that may matter other than by a straight line
    gains: Tensor  # (metadata columns,): the share of the error that each removes; 0 if it is not used

    def belief(self, encoded: Tensor) -> RowBelief:
        """What the metadata (rows, columns) says of rows."""
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

    Where an adapter knows how sure it is of a head, ``covariance`` is that of (w, b), its lower
    triangle packed (``algebra.symmetric``), and ``noise`` the variance of the feature's observations
    at a row of usual noise.
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
        """E[w²]: by what an uncertain activation enters the variance of the output: (features, width)."""
        return self.weight**2 + diagonals(self.packed_covariance, self.weight.shape[1] + 1)[:, :-1]

    def plain(self, width: int) -> Heads:
        """Return only w and b, with zeros for activations past those the heads were made for."""
        more = self.weight.new_zeros(len(self), width - self.weight.shape[1])
        return Heads(torch.cat([self.weight, more], dim=1), self.bias)

    def parts(self) -> list[Tensor]:
        """All that there is of the heads, as tensors of one entry a feature."""
        every = (self.weight, self.bias, self.covariance, self.noise)
        return [part for part in every if part is not None]

    def replaced(self, features: Tensor, heads: Heads) -> Heads:
        """Return the heads with others, of the same parts, at these positions."""
        after = self._each(torch.clone)
        for own, given in zip(after.parts(), heads.parts(), strict=True):
            own[features] = given.to(own.dtype)
        return after

    def grown(self, more: int) -> Heads:
        """Return the heads with so many empty ones after them."""
        if more == 0:  # nothing needs to be copied
            return self
        return self._each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def _each(self, change) -> Heads:  # type: ignore[no-untyped-def]
        covariance, noise = (None if part is None else change(part) for part in (self.covariance, self.noise))
        return Heads(change(self.weight), change(self.bias), covariance, noise)

    @classmethod
    def concatenate(cls, parts: list[Heads]) -> Heads:
        """Join batches of heads into one; what only some of them know is dropped."""
        covariances = [part.covariance for part in parts if part.covariance is not None]
        noises = [part.noise for part in parts if part.noise is not None]
        return cls(
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
            torch.cat(covariances) if len(covariances) == len(parts) else None,
            torch.cat(noises) if len(noises) == len(parts) else None,
        )


class OneState(NamedTuple):
    """What is known of one row, in numpy: the parts of ``RowStates`` without their first dimension."""

    code: NDArray[Any]
    code_std: NDArray[Any]
    activation: NDArray[Any]
    noise: float | None = None
    variance: NDArray[Any] | None = None

    def parts(self) -> list[Any]:
        """All that there is of the state, in the order of ``RowStates.parts``."""
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
    """What a backbone knows of some rows."""

    code: Tensor  # (rows, latent): what the hypernetwork reads
    code_std: Tensor  # (rows, latent): how sure the backbone is of the code
    activation: Tensor  # (rows, width): what heads read
    noise: Tensor | None = None  # (rows,): how noisy a row's observations are, relative to the usual
    variance: Tensor | None = None  # (rows, width): how uncertain each part of the activation is

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Tensor | slice) -> RowStates:
        """Return the states of these rows; those of a slice are not copied."""
        if isinstance(rows, Tensor) and rows.dtype == torch.int64:
            return self.each(lambda part: part.index_select(0, rows))  # faster than an index
        return self.each(lambda part: part[rows])

    def parts(self) -> list[Tensor]:
        """All that there is of the states, as tensors of one entry a row."""
        every = (self.code, self.code_std, self.activation, self.noise, self.variance)
        return [part for part in every if part is not None]

    def room_for(self, rows: int) -> RowStates:
        """Return states of the same parts for so many rows, to be filled."""
        return self.each(lambda part: part.new_empty(rows, *part.shape[1:]))

    def put(self, start: int, states: RowStates) -> None:
        """Write states of rows over those from ``start`` on, before anyone reads them."""
        for own, given in zip(self.parts(), states.parts(), strict=True):
            own[start : start + len(states)] = given

    def to(self, dtype: torch.dtype) -> RowStates:
        """Return the states in this precision."""
        return self.each(lambda part: part.to(dtype))

    def detach(self) -> RowStates:
        """Return the same numbers, cut off from any gradient."""
        return self.each(lambda part: part.detach())

    def grown(self, more: int) -> RowStates:
        """Return the states with so many empty ones after them."""
        if more == 0:  # nothing needs to be copied
            return self
        return self.each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def each(self, change: Callable[[Tensor], Tensor]) -> RowStates:
        """Return states of which every part is changed so."""
        noise, variance = (None if part is None else change(part) for part in (self.noise, self.variance))
        return RowStates(change(self.code), change(self.code_std), change(self.activation), noise, variance)

    @classmethod
    def of_one(cls, state: OneState, dtype: torch.dtype) -> RowStates:
        """A batch of one row."""
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
    """E[a·aᵀ] of the rows' activations with a 1, in double precision: (width + 1, width + 1).

    It is kept for the states that were asked for last, because states seldom change between two questions.
    """
    with _REMEMBERING:
        for held, known in _LAST:
            if held() is states:
                return known
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
    """The mean and covariance of a mixture: ``share`` (features,) of the first heads, the rest of the other.

    The other heads may read fewer activations, the first ones of those that ``heads`` read. The covariance
    holds what both say of themselves and how far they are apart, so that a blend of predictions is the
    prediction of the blend.
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
    """The same heads over ``width`` activations, of which they read the first ones."""
    plain = heads.plain(width)
    covariance = plain.weight.new_zeros(len(plain), (width + 1) * (width + 2) // 2)
    covariance[:, _places(heads.weight.shape[1], width)] = heads.packed_covariance
    return Heads(plain.weight, plain.bias, covariance, heads.noise)


def crop_heads(packed: Tensor, fewer: int, width: int) -> Tensor:
    """Of packed matrices over ``width`` activations and a bias, those over ``fewer`` of them and the bias."""
    return packed.index_select(-1, _places(fewer, width))


def _places(fewer: int, width: int) -> Tensor:
    """Where the entries of a smaller packed matrix lie in a larger one, whose last line is the bias too."""
    every = unpack(torch.arange((width + 1) * (width + 2) // 2), width + 1)
    kept = torch.cat([torch.arange(fewer), torch.tensor([width])])
    return pack(every[kept][:, kept])


@dataclass(frozen=True)
class FeatureBatch:
    """Features treated as new: their contexts, metadata and kinds.

    ``cells`` has one line per feature, with any number of shots each; its ``index`` points at rows of
    the ``RowStates`` that go with the batch.
    """

    cells: Cells
    metadata: Tensor  # (features, metadata width); width 0 where there is none
    kinds: Tensor  # (features,): the kind of each
    # (features, 2): where a feature's zero lies, and how long its one is, in units that all real features
    # share, if its own centre and scale are yet to be found; 0 and 0 if they are known. None: all known.
    units: Tensor | None = None
    positions: Tensor | None = None  # (features,): of the backbone's own features, when treated as new
    known: Tensor | None = (
        None  # (features,): of the backbone's own, taken as such; −1 for new. None: all new
    )

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def unscaled(self) -> Tensor:
        """Whether each feature's own centre and scale are yet to be found: (features,)."""
        return torch.zeros_like(self.kinds, dtype=torch.bool) if self.units is None else self.units[:, 1] > 0

    @property
    def shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor, cells: Cells | None = None) -> FeatureBatch:
        """Return these features, in this order, with all that is observed of them or with ``cells``."""
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
    """All that an adapter may learn from before it sees a new feature.

    If several processes train together, each of them has the states and cells of its own rows only.
    """

    states: RowStates  # of every row of the table
    cells: Cells  # rows × the backbone's features, on the models' scale
    heads: Heads  # of the backbone's features
    metadata: Tensor  # (features, metadata width) of the backbone's features
    kinds: Tensor  # (features,): their kinds
    likelihood: Likelihood
    widths: tuple[int, ...] = ()  # how many columns of the encoded metadata each metadata column has
    scales: Scales | None = None  # of the backbone's real features, where each has its own
    new_heads: Heads | None = None  # of the same features as if they were new, for priors to learn from
    # (taught,): the positions of the features that have such heads, where they were sampled. None: all.
    trained_on: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.widths and self.metadata.shape[1]:  # metadata of unknown origin is one column
            object.__setattr__(self, "widths", (self.metadata.shape[1],))

    @property
    def device(self) -> torch.device:
        """Where it is, and where adapters compute with it."""
        return self.kinds.device

    @cached_property
    def table_shots(self) -> Tensor:
        """How many observations each feature has: (features,)."""
        counts = torch.bincount(self.cells.index, minlength=len(self.kinds))
        return process_group().all_reduce_sum(counts).to(torch.float32)
