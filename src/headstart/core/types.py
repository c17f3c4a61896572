"""Data that backbones, adapters and models exchange: row states, heads, feature batches, knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.likelihood import Likelihood
from headstart.linalg.array_ops import A, append_column, lerp, namespace
from headstart.linalg.compact import StoredMatrices
from headstart.linalg.packed import append_one, diagonals, outer_products, pack, packed_size, unpack
from headstart.linalg.ragged import hidden_outputs_at, outputs_at, sampled_products
from headstart.linalg.row_sharded import global_sum
from headstart.table.cells import Cells
from headstart.table.columns import Structure

_CELLS_AT_ONCE = 2**24  # bounds the memory of a dense product of heads and rows

_ROWS_AT_ONCE = 4096  # bounds the memory of ``RowStates.second_moment``

SPLINE_TERMS = 32  # of a number: it resolves a 32nd of its range

VALIDATION_SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def interpolate_shots(marks: Tensor, shots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of the ``marks`` around each number of ``shots``, and the weight of the right one.

    Interpolation is linear in log(1 + shots), and constant beyond the last mark.

    >>> left, right, share = interpolate_shots(torch.tensor([0, 1, 3]), torch.tensor([0, 3, 50]))
    >>> torch.lerp(left.float(), right.float(), share)
    tensor([0., 2., 2.])
    """
    log_marks = marks.to(torch.float32).log1p()
    log_shots = shots.to(torch.float32).log1p().clamp(max=float(log_marks[-1]))
    right = torch.bucketize(log_shots, log_marks).clamp(min(1, len(log_marks) - 1), len(log_marks) - 1)
    left = (right - 1).clamp(min=0)
    share = (log_shots - log_marks[left]) / (log_marks[right] - log_marks[left]).clamp(min=1e-9)
    return left, right, share.clamp(0, 1)


@dataclass(frozen=True)
class Description:
    """Encoded metadata; the columns that encode one metadata column form a group."""

    numbers: Tensor  # (features, columns)
    groups: list[Tensor]  # positions of the columns of each group
    levels: Tensor | None = None  # (features,): whether each is a level of a category. None: no categories

    @classmethod
    def of(cls, numbers: Tensor, widths: Sequence[int]) -> Description:
        """Group ``numbers`` by the ``widths`` of encoded metadata columns; without widths, into one group."""
        widths = widths or (numbers.shape[1],)
        return cls(numbers, list(torch.split(torch.arange(numbers.shape[1]), list(widths))))

    def numeric_columns(self) -> Tensor:
        """Return the positions of the columns that can be numbers: (columns,).

        A metadata column encoded by one or two columns is a number; the second marks missing values.
        """
        return torch.tensor(
            [int(group[0]) for group in self.groups if 0 < len(group) <= 2], dtype=torch.int64
        )

    def nonlinear_columns(self) -> Tensor:
        """Return the mask of columns that can have a nonlinear effect: numbers other than 0 and 1."""
        mask, columns = torch.zeros(self.numbers.shape[1], dtype=torch.bool), self.numeric_columns()
        numbers = self.numbers[:, columns]
        mask[columns] = ((numbers * (1 - numbers)).abs() > 1e-6).any(0)
        return mask

    def with_cubic_terms(self, nonlinear: Tensor) -> Description:
        """Append cubic terms of the columns in the mask ``nonlinear``, the two of a column as a group."""
        width = self.numbers.shape[1]
        pairs = [torch.tensor([width + i, 2 * width + i]) for i in torch.nonzero(nonlinear)[:, 0].tolist()]
        return replace(self, numbers=add_cubic_terms(self.numbers, nonlinear), groups=[*self.groups, *pairs])

    def with_nonlinear_terms(self, nonlinear: Tensor) -> Description:
        """Append cubic and spline terms of the columns in the mask ``nonlinear``, each a group of a column.

        There are spline terms of all ``numeric_columns``, so that the width does not depend on the numbers.
        """
        columns, cubic = self.numeric_columns(), self.with_cubic_terms(nonlinear)
        terms = spline_terms(self.numbers[:, columns]).flatten(1)
        start = cubic.numbers.shape[1]
        groups = torch.arange(start, start + terms.shape[1]).view(-1, SPLINE_TERMS)[nonlinear[columns]]
        return replace(cubic, numbers=torch.cat([cubic.numbers, terms], 1), groups=[*cubic.groups, *groups])

    def with_group(self, more: Tensor) -> Description:
        """Append the columns ``more`` (features, columns) as a further group."""
        width = self.numbers.shape[1]
        group = torch.arange(width, width + more.shape[1])
        return replace(self, numbers=torch.cat([self.numbers, more], 1), groups=[*self.groups, group])


def interpolate_at_shots(numbers: Any, shots: Any) -> Any:
    """Interpolate ``numbers``, one for each of ``VALIDATION_SHOTS``, at other numbers of ``shots`` (…).

    Interpolation is that of ``interpolate_shots``. Both are tensors, or both are arrays or numbers of numpy.

    >>> interpolate_at_shots(torch.arange(9.0), torch.tensor([0, 3, 500]))
    tensor([0.0000, 2.5632, 8.0000])
    >>> float(interpolate_at_shots(np.arange(9.0), 2))
    2.0
    """
    if isinstance(shots, Tensor):
        left, right, share = interpolate_shots(torch.tensor(VALIDATION_SHOTS, device=shots.device), shots)
        return torch.lerp(numbers[left], numbers[right], share.to(numbers.dtype))
    return np.interp(np.log1p(shots), np.log1p(VALIDATION_SHOTS), numbers)


def add_cubic_terms(numbers: A, nonlinear: A) -> A:
    """Append m·(1 − m) and m·(1 − m)·(1 − 2m) of each column m: (…, 3 × columns).

    The terms model nonlinear effects of numbers from 0 to 1. They are 0 outside the mask ``nonlinear``.

    >>> add_cubic_terms(torch.tensor([[0.5, 0.2]]), torch.tensor([False, True]))
    tensor([[0.5000, 0.2000, 0.0000, 0.1600, 0.0000, 0.0960]])
    """
    xp = namespace(numbers)
    quadratic = xp.where(nonlinear, numbers * (1 - numbers), 0.0)
    return xp.concatenate([numbers, quadratic, quadratic * (1 - 2 * numbers)], -1)  # type: ignore[no-any-return]


def spline_terms(numbers: A) -> A:
    """Return cos(π·j·m) / j² of each number m, for j = 1, 2, …: (…, SPLINE_TERMS).

    A ridge regression on these terms is a smoothing spline on [0, 1]: the prior of the function is a Gaussian
    process whose second derivative is white noise. Numbers outside are set to 0 or 1.

    >>> spline_terms(torch.tensor([0.0, 1.0]))[:, :3]
    tensor([[ 1.0000,  0.2500,  0.1111],
            [-1.0000,  0.2500, -0.1111]])
    """
    xp = namespace(numbers)
    orders = xp.arange(1, SPLINE_TERMS + 1)
    if isinstance(orders, Tensor):
        orders = orders.to(numbers.device)
    angles = math.pi * numbers.clip(0, 1)[..., None] * orders
    return xp.cos(angles) / orders**2  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RowPrior:
    """Prior of the activations of some rows given their metadata, relative to the backbone's prior."""

    shift: Tensor  # (rows, width): added to the backbone's prior mean
    covariance: Tensor  # (width, width): replaces the backbone's prior covariance

    def take(self, rows: Tensor | slice) -> RowPrior:
        """Return the prior of these rows."""
        return RowPrior(self.shift[rows], self.covariance)


@dataclass(frozen=True)
class RowPriorRegression:
    """Regression of rows' activations on the informative columns of their metadata."""

    matrix: Tensor  # (columns with cubic terms, width)
    constant: Tensor  # (width,)
    covariance: Tensor  # (width, width)
    nonlinear: Tensor  # (columns,): mask of the columns with cubic terms
    gains: Tensor  # (metadata columns,): fraction of the error that each explains; 0 if it is not used

    def prior_of(self, encoded: Tensor) -> RowPrior:
        """Return the prior of rows with the ``encoded`` metadata (rows, columns)."""
        return RowPrior(
            add_cubic_terms(encoded, self.nonlinear) @ self.matrix + self.constant, self.covariance
        )


class OneHead(NamedTuple):
    """One head in numpy: the tensors of ``Heads`` without their first dimension; or a stack of heads."""

    weight: NDArray[Any]
    bias: Any
    covariance: NDArray[Any]
    noise: Any

    @property
    def packed_covariance(self) -> NDArray[Any]:
        """The covariance: (packed,)."""
        return self.covariance

    def split(self) -> list[OneHead]:
        """Split a stack into its heads."""
        parts: list[Any] = list(self)
        return [OneHead(*(part[position] for part in parts)) for position in range(len(self.weight))]

    def mean_squares(self) -> NDArray[Any]:
        """Return E[w²]: (width,)."""
        return self.weight**2 + diagonals(self.covariance, len(self.weight) + 1)[:-1]


def _append_zeros(part: Tensor, more: int) -> Tensor:
    """Append ``more`` lines of zeros."""
    if isinstance(part, StoredMatrices):
        return cast(Tensor, part.append_zeros(more))
    return torch.cat([part, part.new_zeros(more, *part.shape[1:])])


@dataclass(frozen=True)
class Heads:
    """Batch of heads θ = (w, b): the prediction for a row is its kind's link of w·d + b.

    If the adapter computes uncertainty, ``covariance`` is the covariance of (w, b), packed
    (``linalg.packed``), and ``noise`` is the variance of the feature's observations at a row of average
    noise. In a large model, a ``StoredMatrices`` takes the place of the tensor ``covariance``.
    """

    weight: Tensor  # (features, width)
    bias: Tensor  # (features,)
    covariance: Tensor | None = None  # (features, (width + 1)·(width + 2)/2)
    noise: Tensor | None = None  # (features,)

    def __len__(self) -> int:
        return self.bias.shape[0]  # ``len`` of a tensor takes several times as long

    def take(self, features: Tensor | slice) -> Heads:
        """Return the heads at the positions ``features``; a slice returns views."""
        if isinstance(features, Tensor) and features.dtype == torch.int64:
            return self._each(lambda part: part.index_select(0, features))  # faster than indexing
        return self._each(lambda part: part[features])

    def detach(self) -> Heads:
        """Return the heads without gradients."""
        return self._each(lambda part: part.detach())

    def to(self, dtype: torch.dtype) -> Heads:
        """Return the heads in the precision ``dtype``."""
        return self._each(lambda part: part.to(dtype))

    def outputs_at(self, activation: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
        """Compute the means of outputs at ``cells``, and their variances from the heads: two of (n,).

        ``cells`` has one line per head and indexes rows of ``activation`` (rows, width).
        """
        if self.covariance is not None:
            mean, variance = outputs_at(self.stacked, self.packed_covariance, activation, cells)
            return mean, variance.clamp(min=0)
        positions = torch.arange(len(self), device=cells.index.device)
        parts = torch.split(positions, max(1, _CELLS_AT_ONCE // max(1, len(activation))))
        products = [
            sampled_products(self.weight[part], activation, cells.take(part) if len(parts) > 1 else cells)
            for part in parts
        ]
        mean = torch.cat([activation.new_zeros(0), *products]) + self.bias[cells.lines]
        return mean, torch.zeros_like(mean)

    @property
    def stacked(self) -> Tensor:
        """The parameters (w, b) of each head: (features, width + 1)."""
        return torch.cat([self.weight, self.bias[:, None]], dim=1)

    @property
    def packed_covariance(self) -> Tensor:
        """The covariances, 0 for heads without them: (features, packed)."""
        if isinstance(self.covariance, StoredMatrices):
            return self.covariance.packed()
        if self.covariance is not None:
            return self.covariance
        return self.weight.new_zeros(len(self), packed_size(self.weight.shape[1] + 1))

    def dense(self) -> Heads:
        """Return the heads with all covariances in a tensor."""
        return self if self.covariance is None else replace(self, covariance=self.packed_covariance)

    def covariances(self, size: int) -> Tensor:
        """Return the covariances as matrices: (features, size, size)."""
        return unpack(self.packed_covariance, size)

    def mean_squares(self) -> Tensor:
        """Return E[w²], the factor from the activation's to the output's variance: (features, width)."""
        return self.weight**2 + diagonals(self.packed_covariance, self.weight.shape[1] + 1)[:, :-1]

    def mean_weight_moment(self) -> Tensor:
        """Return the mean of E[w·wᵀ] over the heads: (width, width).

        It turns a difference of activations into the mean squared difference of their predictions.
        """
        covariance = unpack(self.packed_covariance.mean(0), self.weight.shape[1] + 1)[:-1, :-1]
        return self.weight.T @ self.weight / max(1, len(self)) + covariance

    def plain(self, width: int) -> Heads:
        """Return w and b without uncertainty, with zero weights for activations up to ``width``."""
        zeros = self.weight.new_zeros(len(self), width - self.weight.shape[1])
        return Heads(torch.cat([self.weight, zeros], dim=1), self.bias)

    def parts(self) -> list[Tensor]:
        """Return the tensors of the heads that are not None."""
        return [part for part in vars(self).values() if part is not None]

    def replace_at(self, features: Tensor, heads: Heads) -> Heads:
        """Return a copy with other ``heads``, of the same parts, at the positions ``features``."""
        copy = self._each(torch.clone)
        for part, other in zip(copy.parts(), heads.parts(), strict=True):
            part[features] = other.to(part.dtype)
        return copy

    def append_zeros(self, more: int) -> Heads:
        """Append ``more`` heads of zeros."""
        if more == 0:  # avoid a copy
            return self
        return self._each(lambda part: _append_zeros(part, more))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Heads:
        """Apply ``change`` to every tensor."""
        return replace(self, **{name: change(part) for name, part in vars(self).items() if part is not None})

    @staticmethod
    def concatenate(parts: list[Heads]) -> Heads:
        """Concatenate batches of heads of one class; drop tensors that some of the batches do not have."""
        by_name = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return type(parts[0])(
            **{name: torch.cat(of) for name, of in by_name.items() if all(part is not None for part in of)}
        )


@dataclass(frozen=True)
class NetworkHeads(Heads):
    """Batch of heads with one hidden layer: the output is w·d + b + v·relu(U·[d; 1]).

    Training and benchmarks take these heads; a fitted model stores linear heads only. The variance of a row's
    activation passes through w only.
    """

    hidden: Tensor = field(kw_only=True)  # (features, units, width + 1): U
    outer: Tensor = field(kw_only=True)  # (features, units): v

    def outputs_at(self, activation: Tensor, cells: Cells) -> tuple[Tensor, Tensor]:
        """Compute the means of outputs at ``cells``, and their variances from the heads: two of (n,)."""
        mean, variance = super().outputs_at(activation, cells)
        return mean + hidden_outputs_at(self.hidden, self.outer, activation, cells), variance


class OneState(NamedTuple):
    """State of one row in numpy: the tensors of ``RowStates`` without their first dimension."""

    code: NDArray[Any]
    code_std: NDArray[Any]
    activation: NDArray[Any]
    noise: float | None = None
    variance: NDArray[Any] | None = None
    exposure: float | None = None


class OneRow(NamedTuple):
    """Observations of one row in numpy, each with the head of its feature."""

    values: NDArray[Any]  # (n,): on the models' scale
    heads: NDArray[Any]  # (n, width + 1): the means of (w, b), in double precision
    covariance: NDArray[Any]  # (n, packed): of (w, b), in single precision
    noise: NDArray[Any]  # (n,): the variance of an observation at a row of average noise
    kinds: NDArray[Any]  # (n,): of the features
    weights: NDArray[Any] | None = None  # (n,): of the observations; None: all 1


@dataclass(frozen=True)
class RowParts:
    """The activation of one row as a sum of contributions, in double precision."""

    baseline: Tensor  # (width,): the activation of a row without observations
    choice: Tensor  # (width,): contribution of the choice of features that the row observed
    metadata: Tensor  # (width,): contribution of the row's metadata
    observations: Tensor  # (n, width): contribution of each value, in the order of the row's cells

    @property
    def total(self) -> Tensor:
        """The row's activation: (width,)."""
        return self.baseline + self.choice + self.metadata + self.observations.sum(0)


@dataclass(frozen=True)
class RowStates:
    """States of rows, computed by a backbone."""

    code: Tensor  # (rows, latent): the input of the hypernetwork
    code_std: Tensor  # (rows, latent): standard deviation of the code
    activation: Tensor  # (rows, width): the input of heads
    noise: Tensor | None = None  # (rows,): noise of a row's observations, relative to the average row
    variance: Tensor | None = None  # (rows, width): of the activation
    exposure: Tensor | None = None  # (rows,): to click features, see ``clicks``; None without clicks
    # Positions in the model (rows,), or the observations of rows that are not in the model, by which
    # predictions find residuals (``neighbours``). It is not one of the ``parts``, and never stored.
    rows: Tensor | Cells | None = None

    def __len__(self) -> int:
        return len(self.code)

    def take(self, rows: Tensor | slice) -> RowStates:
        """Return the states of ``rows``; a slice returns views."""
        if isinstance(rows, Tensor) and rows.dtype == torch.int64:
            states = self.each(lambda part: part.index_select(0, rows))  # faster than indexing
        else:
            states = self.each(lambda part: part[rows])
        if isinstance(self.rows, Cells):
            return states.at(self.rows.take(torch.arange(len(self))[rows]))
        return states if self.rows is None else states.at(self.rows[rows])

    def at(self, rows: Tensor | Cells | None) -> RowStates:
        """Return the states with the positions ``rows`` (rows,) in the model, or with their observations."""
        return replace(self, rows=rows)

    def parts(self) -> list[Tensor]:
        """Return the tensors of the states that are not None."""
        parts = (self.code, self.code_std, self.activation, self.noise, self.variance, self.exposure)
        return [part for part in parts if part is not None]

    def room_for(self, rows: int) -> RowStates:
        """Allocate uninitialised states of the same parts for ``rows`` rows."""
        return self.each(lambda part: part.new_empty(rows, *part.shape[1:]))

    @cached_property
    def second_moment(self) -> Tensor:
        """The mean of [a; 1]·[a; 1]ᵀ over the activations, in double precision: (width + 1, width + 1)."""
        size = self.activation.shape[1] + 1
        total = torch.zeros(size, size, dtype=torch.float64)
        for block in torch.split(self.activation, _ROWS_AT_ONCE):
            rows = append_one(block.double())
            total += rows.T @ rows
        return total / max(1, len(self))

    def put(self, start: int, states: RowStates) -> None:
        """Overwrite the states from ``start`` on in place; only for states that are not in use yet."""
        for part, other in zip(self.parts(), states.parts(), strict=True):
            part[start : start + len(states)] = other

    def replace_at(self, rows: Tensor, states: RowStates) -> RowStates:
        """Return a copy with other ``states`` at the positions ``rows``."""
        copy = self.each(torch.clone)
        for part, other in zip(copy.parts(), states.parts(), strict=True):
            part[rows] = other
        return copy

    def to(self, dtype: torch.dtype) -> RowStates:
        """Return the states in the precision ``dtype``."""
        return self.each(lambda part: part.to(dtype)).at(self.rows)

    def detach(self) -> RowStates:
        """Return the states without gradients."""
        return self.each(lambda part: part.detach()).at(self.rows)

    def append_zeros(self, more: int) -> RowStates:
        """Append ``more`` states of zeros."""
        if more == 0:  # avoid a copy
            return self
        return self.each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def each(self, change: Callable[[Tensor], Tensor]) -> RowStates:
        """Apply ``change`` to every part."""
        optional = (self.noise, self.variance, self.exposure)
        changed = (None if part is None else change(part) for part in optional)
        return RowStates(change(self.code), change(self.code_std), change(self.activation), *changed)

    def split(self) -> list[OneState]:
        """Return the state of each row in numpy."""
        parts = (self.code, self.code_std, self.activation, self.noise, self.variance, self.exposure)
        arrays = [None if part is None else part.numpy() for part in parts]
        return [
            OneState(*(None if array is None else array[row] for array in arrays))  # type: ignore[arg-type]
            for row in range(len(self))
        ]

    @classmethod
    def of_one(cls, state: OneState, dtype: torch.dtype) -> RowStates:
        """Build a batch of one row."""
        code, code_std, activation = (torch.tensor(part, dtype=dtype)[None] for part in state[:3])
        noise = None if state.noise is None else torch.tensor([state.noise], dtype=dtype)
        variance = None if state.variance is None else torch.tensor(state.variance, dtype=dtype)[None]
        exposure = None if state.exposure is None else torch.tensor([state.exposure], dtype=dtype)
        return cls(code, code_std, activation, noise, variance, exposure)

    @classmethod
    def concatenate(cls, parts: list[RowStates]) -> RowStates:
        """Concatenate batches of rows; drop noise, variance and exposure unless all batches have them."""
        noises = [part.noise for part in parts if part.noise is not None]
        variances = [part.variance for part in parts if part.variance is not None]
        exposures = [part.exposure for part in parts if part.exposure is not None]
        return cls(
            torch.cat([part.code for part in parts]),
            torch.cat([part.code_std for part in parts]),
            torch.cat([part.activation for part in parts]),
            torch.cat(noises) if len(noises) == len(parts) else None,
            torch.cat(variances) if len(variances) == len(parts) else None,
            torch.cat(exposures) if len(exposures) == len(parts) else None,
        )


AnyHeads = TypeVar("AnyHeads", Heads, OneHead)


def mix_heads(heads: AnyHeads, other: AnyHeads, share: Any) -> AnyHeads:
    """Return mean and covariance of mixtures of ``heads`` with weight ``share`` (features,) and ``other``.

    ``other`` can have fewer weights, those of the first activations; the others are 0. The covariance
    includes the difference of the means, so that the predictions have the moments of a mixture of
    predictions. A ``share`` for one head in numpy is a number.
    """
    other, column = pad_heads(other, heads.weight.shape[-1]), share[..., None]
    difference = append_column(heads.weight - other.weight, heads.bias - other.bias)
    covariance = lerp(other.packed_covariance, heads.packed_covariance, column)
    covariance = covariance + column * (1 - column) * outer_products(difference)
    noise = None
    if heads.noise is not None and other.noise is not None:
        noise = lerp(other.noise, heads.noise, share)
    weight = lerp(other.weight, heads.weight, column)
    bias = lerp(other.bias, heads.bias, share)
    return type(heads)(weight, bias, covariance, noise)


def pad_heads(heads: AnyHeads, width: int) -> AnyHeads:
    """Extend heads to ``width`` activations, with zeros for the added weights and their covariances."""
    narrow = heads.weight.shape[-1]
    positions = _padded_positions(narrow, width)
    packed = packed_size(width + 1)
    if isinstance(heads, OneHead):
        lead: tuple[int, ...] = heads.weight.shape[:-1]
        weight, covariance = np.zeros((*lead, width)), np.zeros((*lead, packed))
        weight[..., :narrow], covariance[..., positions.numpy()] = heads.weight, heads.covariance
        return heads._replace(weight=weight, covariance=covariance)
    plain = heads.plain(width)
    matrices = plain.weight.new_zeros(len(plain), packed)
    matrices[:, positions] = heads.packed_covariance
    return Heads(plain.weight, plain.bias, matrices, heads.noise)


@cache
def _padded_positions(narrow: int, width: int) -> Tensor:
    """Return the positions of the packed covariance of ``narrow`` weights and a bias in that of ``width``."""
    positions = unpack(torch.arange(packed_size(width + 1)), width + 1)
    columns = torch.tensor([*range(narrow), width])
    return pack(positions[columns][:, columns])


@dataclass(frozen=True)
class FeatureBatch:
    """Batch of features that an adapter treats as new: their contexts, metadata and kinds.

    ``cells`` has one line per feature; its ``index`` contains positions of rows in the ``RowStates`` that
    accompany the batch.
    """

    cells: Cells
    metadata: Tensor  # (features, metadata width); width 0 without metadata
    kinds: Tensor  # (features,): the kind of each
    # (features, 2): offset and span of features with unknown centre and scale, in units common to all real
    # features; 0 and 0 for other features. None: all are known.
    units: Tensor | None = None
    positions: Tensor | None = None  # (features,): in the backbone, for its features treated as new
    known: Tensor | None = None  # (features,): positions in the backbone, −1 for new. None: all new
    exposure: Tensor | None = None  # (features,): of clicks, NaN if unknown. None: all unknown
    # (features,): equal for the levels of one category, which have the same rows. None: no categories
    groups: Tensor | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def unscaled(self) -> Tensor:
        """Whether the centre and scale of each feature are unknown: (features,)."""
        return torch.zeros_like(self.kinds, dtype=torch.bool) if self.units is None else self.units[:, 1] > 0

    @property
    def shots(self) -> Tensor:
        """Number of observations of each feature: (features,)."""
        return self.cells.counts

    def take(self, features: Tensor, cells: Cells | None = None) -> FeatureBatch:
        """Return the ``features`` in this order, with their observations or with ``cells``."""
        optional = (self.units, self.positions, self.known, self.exposure, self.groups)
        return FeatureBatch(
            self.cells.take(features) if cells is None else cells,
            self.metadata[features],
            self.kinds[features],
            *(None if part is None else part[features] for part in optional),
        )

    @staticmethod
    def concatenate(parts: list[FeatureBatch]) -> FeatureBatch:
        """Return the features of all ``parts``, which index the same rows."""
        if len(parts) == 1:
            return parts[0]

        def join(name: str) -> Tensor | None:
            tensors = [getattr(part, name) for part in parts]
            return None if tensors[0] is None else torch.cat(tensors)

        groups = join("groups")
        if groups is not None:  # levels of one category belong together in one part only
            owner = torch.repeat_interleave(torch.tensor([len(part) for part in parts])).to(groups)
            groups = groups + owner * (groups.max() + 1)
        return FeatureBatch(
            Cells.concatenate([part.cells for part in parts]),
            torch.cat([part.metadata for part in parts]),
            torch.cat([part.kinds for part in parts]),
            join("units"),
            join("positions"),
            join("known"),
            join("exposure"),
            groups,
        )

    def observing(self, cells: Cells) -> FeatureBatch:
        """Return the same features with the observations ``cells``."""
        return replace(self, cells=cells)


@dataclass(frozen=True)
class Scales:
    """Centres and scales of a backbone's real features, in units common to all."""

    centre: Tensor  # (real features,)
    scale: Tensor  # (real features,)


@dataclass(frozen=True)
class Knowledge:
    """The data from which an adapter learns before it is applied to new features.

    If several processes train together, each has the states and cells of some rows only.
    """

    states: RowStates  # of every row of the table
    cells: Cells  # rows × the backbone's features, on the models' scale
    heads: Heads  # of the backbone's features
    metadata: Tensor  # (features, metadata width) of the backbone's features
    kinds: Tensor  # (features,): their kinds
    likelihood: Likelihood
    widths: tuple[int, ...] = ()  # number of encoded columns of each metadata column
    scales: Scales | None = None  # of the backbone's real features, if they differ
    new_heads: Heads | None = None  # heads of the same features as if they were new, for learning priors
    # (sampled,): positions of the features whose ``new_heads`` are cross-fitted; others have the backbone's
    # heads. None: all are cross-fitted.
    cross_fitted: Tensor | None = None
    structures: tuple[Structure | None, ...] = ()  # of each metadata column; None for plain numbers

    def __post_init__(self) -> None:
        if not self.widths and self.metadata.shape[1]:  # metadata of unknown origin is one column
            object.__setattr__(self, "widths", (self.metadata.shape[1],))

    @property
    def device(self) -> torch.device:
        """The device of the tensors, on which adapters compute."""
        return self.kinds.device

    @cached_property
    def head_arrays(self) -> list[NDArray[Any]]:
        """The parts of ``heads`` in numpy."""
        return [part.numpy() for part in self.heads.detach().parts()]

    def count_shots(self) -> Tensor:
        """Count the observations of each feature: (features,). Every process must call it.

        The result is cached.
        """
        if "_shots" not in vars(self):
            counts = torch.bincount(self.cells.index, minlength=len(self.kinds))
            vars(self)["_shots"] = global_sum(counts).to(torch.float32)
        shots: Tensor = vars(self)["_shots"]
        return shots
