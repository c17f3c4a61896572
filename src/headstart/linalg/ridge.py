"""Ridge regression with one prior variance per group of columns, chosen by leave-one-out error.

The lines of a regression are features, which every process has, or rows, which are divided among the
processes (``shared``). Sums over lines go through the process group that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from headstart.distributed import SINGLE_PROCESS, ProcessGroup, process_group
from headstart.linalg.packed import make_positive_definite, unpack, weighted_traces
from headstart.linalg.ragged import row_slices
from headstart.linalg.row_sharded import gather_sample, global_mean

MAX_COLUMNS = 256  # of one group; wider groups are reduced to their leading principal directions

_MAX_GROUPS = 16  # with a strength of their own; if there are more, the least useful share one

_PASSES = 3  # over the groups

_NUMBERS_AT_ONCE = 2**22  # of the designs of groups that are compared together

_NUMBERS_IN_CACHE = 2**17  # of the designs at several strengths

_CONSTANT_STRENGTH = 1e6  # prior variance of the constant relative to the noise: it is not shrunk

_LINES_TO_CHOOSE = 2**17  # the strengths are chosen from at most this number of lines

_COPIES = 4  # arrays of the size of a block of lines in memory at a time

# Candidate prior variances of a group's contribution, relative to the noise.
_STRENGTHS = torch.logspace(-3, 2, 16, dtype=torch.float64)

# -- groups of columns --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Columns with a common strength: centred, scaled to mean squared length 1, reduced if there are many."""

    columns: Tensor  # (columns,): positions in the encoded metadata
    centre: Tensor  # (columns,)
    basis: Tensor  # (columns, width): maps centred columns to the columns of the design

    @property
    def width(self) -> int:
        """The number of columns of the design."""
        return int(self.basis.shape[1])

    def design(self, encoded: Tensor) -> Tensor:
        """Compute the columns of the design from ``encoded`` metadata (lines, columns): (lines, width)."""
        return (encoded[:, self.columns].double() - self.centre) @ self.basis


def make_groups(
    encoded: Tensor,
    groups: list[Tensor],
    generator: torch.Generator | None = None,
    *,
    shared: bool = False,
) -> list[Group]:
    """Prepare groups of the columns of ``encoded`` (lines, columns); a constant group has width 0.

    A group of more columns than ``MAX_COLUMNS`` (or than lines) is reduced to its leading principal
    directions: exactly where that is cheap, otherwise by a randomised decomposition. ``shared`` says that
    the lines are divided among the processes.
    """
    processes = process_group() if shared else SINGLE_PROCESS
    return [_make_group(columns, encoded[:, columns].double(), generator, processes) for columns in groups]


def _make_group(
    columns: Tensor, part: Tensor, generator: torch.Generator | None, processes: ProcessGroup
) -> Group:
    lines, width = processes.span(len(part))[1], part.shape[1]
    reduced = width > min(MAX_COLUMNS, lines)
    if reduced:  # gather the lines: they are few, or are needed to find few directions of many columns
        part, processes = processes.all_gather(part), SINGLE_PROCESS
    centre = processes.all_reduce_sum(part.sum(0)) / max(1, lines)
    size = processes.sum_number(float((part**2).sum())) / max(1, lines)
    part = part - centre
    length = processes.sum_number(float((part**2).sum())) / max(1, lines)
    if width == 0 or lines < 2 or length <= 1e-10 * size:
        return Group(columns, centre, part.new_zeros(width, 0))
    if reduced:
        directions = leading_directions(part, min(MAX_COLUMNS, lines - 1), generator)
    else:
        directions = torch.eye(width, dtype=part.dtype)
    return Group(columns, centre, directions / length**0.5)


def leading_directions(part: Tensor, rank: int, generator: torch.Generator | None = None) -> Tensor:
    """Compute the leading principal directions of centred columns (lines, columns): (columns, rank)."""
    lines, width = part.shape
    if min(lines, width) <= 2 * MAX_COLUMNS:
        if lines <= width:
            values, vectors = torch.linalg.eigh(part @ part.T)
            values, vectors = values[-rank:], vectors[:, -rank:]
            nonzero = values > 1e-9 * values[-1]
            directions: Tensor = part.T @ vectors[:, nonzero] / values[nonzero].sqrt()
            return directions
        eigenvectors: Tensor = torch.linalg.eigh(part.T @ part).eigenvectors
        return eigenvectors[:, -rank:]
    basis = torch.randn(width, rank + 16, dtype=part.dtype, generator=generator)
    for _ in range(4):
        basis = torch.linalg.qr(part.T @ torch.linalg.qr(part @ basis).Q).Q
    _, _, rotation = torch.linalg.svd(part @ basis, full_matrices=False)
    leading: Tensor = (basis @ rotation.T)[:, :rank]
    return leading


# -- the regression -----------------------------------------------------------------------------------


class LooRidge:
    """The regression y_i = B·[x_i; 1] + residual, where each group of columns has a prior variance.

    The prior variance relative to the noise is the group's *strength*. ``choose`` selects the strengths by
    the closed-form leave-one-out error; a strength of 0 leaves the group out. ``fit`` computes B and the
    leave-one-out prediction of every line.

    Parameters
    ----------
    groups : list of Group
        The groups of columns.
    shared : bool
        Whether the lines are divided among the processes; otherwise every process has all of them.
    """

    def __init__(self, groups: list[Group], *, shared: bool = False) -> None:
        self.groups, self._processes = groups, process_group() if shared else SINGLE_PROCESS
        self.members = [[position] for position in range(len(groups))]  # the original groups in each group
        self.tried = len(groups)  # before pooling
        self.strengths = torch.zeros(len(groups), dtype=torch.float64)
        self.gains = torch.zeros(len(groups), dtype=torch.float64)  # share of the error that each removes
        self.coefficients = torch.zeros(1, 0, dtype=torch.float64)

    # -- strengths --------------------------------------------------------------------------------

    def choose(self, encoded: Tensor, targets: Tensor, weights: Tensor, metric: Tensor) -> None:
        """Choose the strength of each group, one after the other, by the leave-one-out error.

        The error Δ of a prediction of ``targets`` (lines, size) counts as Δᵀ·M·Δ with the ``metric`` M (size,
        size); ``weights`` (lines,) are the precisions of the targets. A group is included only if it reduces
        the error by more than the best of as many uninformative groups would by chance.
        """
        if not self.groups:
            return
        encoded, targets, weights = gather_sample(
            _LINES_TO_CHOOSE, encoded, targets, weights, group=self._processes
        )
        weights = _relative(weights)
        targets = targets.double() @ torch.linalg.cholesky(make_positive_definite(metric.double()))
        parts = [group.design(encoded) for group in self.groups]
        if len(self.groups) > _MAX_GROUPS:
            parts = self._pool(parts, targets, weights)
        critical_value = _critical_value(self.tried, len(targets))
        design = torch.cat([*parts, targets.new_ones(len(targets), 1)], dim=1)
        group_of_column = torch.cat([torch.full((part.shape[1],), g) for g, part in enumerate(parts)])
        group_of_column = torch.cat([group_of_column, torch.tensor([-1])])
        found: dict[tuple[float, ...], tuple[float, float]] = {}  # by group and strengths of the others
        for _ in range(_PASSES):
            before = self.strengths.clone()
            for g, part in enumerate(parts):
                if part.shape[1]:
                    key = (g, *self.strengths[:g].tolist(), *self.strengths[g + 1 :].tolist())
                    if key not in found:
                        found[key] = _best_strength(
                            design, group_of_column, self.strengths, g, targets, weights, critical_value
                        )
                    self.strengths[g], self.gains[g] = found[key]
            if torch.equal(before, self.strengths):
                break

    def _pool(self, parts: list[Tensor], targets: Tensor, weights: Tensor) -> list[Tensor]:
        """Replace the groups that reduce the error least by one group; return the parts of the new groups."""
        gains = torch.zeros(len(parts))
        for width in sorted({part.shape[1] for part in parts} - {0}):
            alike = [g for g, part in enumerate(parts) if part.shape[1] == width]
            for block in torch.split(torch.tensor(alike), max(1, _NUMBERS_AT_ONCE // (len(targets) * width))):
                stack = torch.stack([parts[g] for g in block.tolist()])
                gains[block] = _gains_alone(stack, targets, weights).float()
        order = torch.argsort(gains, descending=True).tolist()
        separate, pooled = sorted(order[: _MAX_GROUPS - 1]), sorted(order[_MAX_GROUPS - 1 :])
        columns = torch.cat([self.groups[g].columns for g in pooled])
        centre = torch.cat([self.groups[g].centre for g in pooled])
        blocks = [self.groups[g].basis for g in pooled]
        basis: Tensor = torch.block_diag(*blocks) / len(pooled) ** 0.5  # type: ignore[no-untyped-call]
        pooled_part = torch.cat([parts[g] for g in pooled], dim=1) / len(pooled) ** 0.5
        if pooled_part.shape[1] > min(MAX_COLUMNS, len(pooled_part)):
            directions = leading_directions(pooled_part, min(MAX_COLUMNS, len(pooled_part) - 1))
            basis, pooled_part = basis @ directions, pooled_part @ directions
        self.groups = [self.groups[g] for g in separate] + [Group(columns, centre, basis)]
        self.members = [self.members[g] for g in separate] + [[m for g in pooled for m in self.members[g]]]
        self.strengths = torch.zeros(len(self.groups), dtype=torch.float64)
        self.gains = torch.zeros(len(self.groups), dtype=torch.float64)
        return [parts[g] for g in separate] + [pooled_part]

    # -- coefficients -----------------------------------------------------------------------------

    def fit(self, encoded: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute the coefficients; return the leave-one-out prediction of each line: (lines, size).

        ``targets`` is (lines, size), ``weights`` (lines,). Solves the normal equations of the columns, or the
        equivalent system of the lines if there are fewer lines than columns.
        """
        processes, ridge = self._processes, self._ridge()
        columns = len(ridge)
        start, lines = processes.span(len(encoded))
        if columns > lines:
            gathered = (processes.all_gather(part) for part in (encoded, targets, weights))
            return self._fit_by_lines(*gathered)[start : start + len(encoded)]
        weights = _relative(weights, processes)
        parts = list(row_slices(len(encoded), _COPIES * 8 * (columns + targets.shape[1])))
        normal = torch.zeros(columns, columns, dtype=torch.float64)
        linear = torch.zeros(columns, targets.shape[1], dtype=torch.float64)
        for part in parts:
            design = self._design(encoded[part])
            weighted = design * weights[part, None]
            normal += weighted.T @ design
            linear += weighted.T @ targets[part].double()
        normal, linear = processes.all_reduce_sum(normal), processes.all_reduce_sum(linear)
        lower = torch.linalg.cholesky(normal + torch.diag(ridge))
        self.coefficients = torch.cholesky_solve(linear, lower)
        predicted = torch.empty_like(targets)
        for part in parts:
            design = self._design(encoded[part]) if len(parts) > 1 else design
            solved = torch.linalg.solve_triangular(lower, design.T, upper=False)
            predicted[part] = self._predict_left_out(
                design, targets[part], (solved**2).sum(0) * weights[part]
            )
        return predicted

    def _fit_by_lines(self, encoded: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        weights = _relative(weights)
        design, ridge = self._design(encoded), self._ridge()
        scale = weights.clamp(min=1e-12).sqrt()[:, None]
        scaled = scale * design
        system = (scaled / ridge) @ scaled.T + torch.eye(len(scaled), dtype=scaled.dtype)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        self.coefficients = (scaled / ridge).T @ (inverse @ (scale * targets.double()))
        return self._predict_left_out(design, targets, 1 - inverse.diagonal())

    def _predict_left_out(self, design: Tensor, targets: Tensor, leverage: Tensor) -> Tensor:
        """Compute leave-one-out predictions from the ``leverage`` (lines,) of each line: (lines, size)."""
        exact = targets.double()
        residual = exact - design @ self.coefficients
        loo: Tensor = exact - residual / (1 - leverage.clamp(0, 1 - 1e-6))[:, None]
        return loo.to(targets.dtype)

    def linear_map(self, width: int) -> tuple[Tensor, Tensor]:
        """Return the coefficients of encoded metadata (width, size) and the constant (size,)."""
        size = self.coefficients.shape[1]
        matrix, constant = torch.zeros(width, size, dtype=torch.float64), self.coefficients[-1].clone()
        start = 0
        for group, _ in self._included():
            coefficients = group.basis @ self.coefficients[start : start + group.width]
            matrix.index_add_(0, group.columns, coefficients)
            constant -= group.centre @ coefficients
            start += group.width
        return matrix, constant

    def _included(self) -> list[tuple[Group, float]]:
        """Return the groups of a positive strength, with it."""
        groups = zip(self.groups, self.strengths.tolist(), strict=True)
        return [(group, strength) for group, strength in groups if strength > 0 and group.width]

    def _design(self, encoded: Tensor) -> Tensor:
        """Return the design of the included groups, and a constant: (lines, columns + 1)."""
        constant = torch.ones(len(encoded), 1, dtype=torch.float64)
        return torch.cat([*(group.design(encoded) for group, _ in self._included()), constant], 1)

    def _ridge(self) -> Tensor:
        """Return the ridge penalty of each column of the design: (columns + 1,)."""
        penalties = [1 / strength for group, strength in self._included() for _ in range(group.width)]
        return torch.tensor([*penalties, 1 / _CONSTANT_STRENGTH], dtype=torch.float64)


def _relative(weights: Tensor, processes: ProcessGroup = SINGLE_PROCESS) -> Tensor:
    """Divide the weights (lines,) by their mean over all lines, in double precision."""
    return (weights / max(global_mean(weights, processes), 1e-12)).double()


def _critical_value(groups: int, lines: int) -> Tensor:
    """Return the critical value, in standard errors, for the best of ``groups`` uninformative groups.

    The largest of n normal numbers is about √(2·log n); with few lines the tails are longer.
    """
    normal = (2 * torch.log(torch.tensor(groups + 1.0))).sqrt()
    return normal * (1 + (normal**2 + 1) / (4 * max(1, lines)))


def _best_strength(
    design: Tensor,
    group_of_column: Tensor,
    strengths: Tensor,
    group: int,
    targets: Tensor,
    weights: Tensor,
    critical_value: Tensor,
) -> tuple[float, float]:
    """Return the strength of ``group`` with the least leave-one-out error, and the share of error it removes.

    ``group_of_column`` (columns,) is the group of each column of the ``design``, -1 for the constant; the
    other groups keep their ``strengths``. The ``targets`` (lines, size) are in the metric of predictions, and
    ``critical_value`` is the least gain in standard errors. The candidates share the eigenbasis
    of the group's Schur complement.
    """
    strength_of = strengths[group_of_column.clamp(min=0)]
    others = (group_of_column == -1) | ((group_of_column != group) & (strength_of > 0))
    ridge = torch.where(
        group_of_column == -1, 1 / _CONSTANT_STRENGTH, 1 / strength_of.clamp(min=1e-12).double()
    )
    rest, columns = design[:, others], design[:, group_of_column == group]
    weighted_targets = weights[:, None] * targets
    lower = torch.linalg.cholesky((rest * weights[:, None]).T @ rest + torch.diag(ridge[others]))
    solved = torch.linalg.solve_triangular(lower, rest.T, upper=False)  # (others, lines)
    fitted = solved.T @ (solved @ weighted_targets)
    leverage = (solved**2).sum(0) * weights
    remaining = columns - solved.T @ (solved @ (weights[:, None] * columns))  # residuals on the other groups
    schur = (columns * weights[:, None]).T @ remaining
    values, vectors = torch.linalg.eigh((schur + schur.T) / 2)
    remaining = remaining @ vectors
    by_strength = _ErrorsByStrength(
        targets - fitted, leverage, weights, remaining, values, remaining.T @ weighted_targets
    )
    without = by_strength.without
    decrease = without - by_strength.errors(_STRENGTHS.to(design.device))  # (strengths, lines)
    gains = decrease.sum(1)
    z_scores = gains / (decrease.std(1, correction=0) * len(without) ** 0.5).clamp(min=1e-30)
    # By chance, the best of n uninformative groups has a squared correlation of 2·log(n) / lines.
    chance = critical_value**2 / (2 * len(without))
    significant = (gains > 0) & (z_scores > critical_value) & (gains > chance * without.sum())
    if not bool(significant.any()):
        return 0.0, 0.0
    best = int(torch.where(significant, gains, 0.0).argmax())
    return float(_STRENGTHS[best]), float(gains[best] / without.sum())


@dataclass(frozen=True)
class _ErrorsByStrength:
    """Leave-one-out errors of lines with a group of columns, as functions of the group's strength.

    With the residual a of a line without the group, and the contribution r·b of the group, the squared error
    of the line is |a|² − 2·r·b·a + r·b·bᵀ·rᵀ, so that no array of all targets is needed. Leading dimensions
    of ``remaining``, ``values`` and ``linear`` are several groups of one width.
    """

    residual: Tensor  # (lines, size): of the regression without the group
    leverage: Tensor  # (lines,): of the regression without the group
    weights: Tensor  # (lines,)
    remaining: Tensor  # (…, lines, width): residuals of the columns on other groups, in the eigenbasis
    values: Tensor  # (…, width): eigenvalues of the Schur complement
    linear: Tensor  # (…, width, size): products of ``remaining`` and weighted targets

    @cached_property
    def _squared(self) -> Tensor:
        """The squared residuals without the group: (lines,)."""
        return (self.residual**2).sum(1)

    @cached_property
    def _products(self) -> Tensor:
        """The products r·(b·a) of each column: (…, lines, width)."""
        return self.remaining * (self.residual @ self.linear.mT)

    @cached_property
    def _factor(self) -> Tensor:
        """The smaller of b and the root of b·bᵀ: (…, width, up to width)."""
        if self.linear.shape[-2] >= self.linear.shape[-1]:
            return self.linear
        values, vectors = torch.linalg.eigh(self.linear @ self.linear.mT)
        root: Tensor = vectors * values.clamp(min=0).sqrt()[..., None, :]
        return root

    @property
    def without(self) -> Tensor:
        """The errors without the group: (lines,)."""
        return self.weights * self._squared / (1 - self.leverage).clamp(min=1e-6) ** 2

    def errors(self, strengths: Tensor) -> Tensor:
        """Return the errors at each of ``strengths`` (strengths,): (…, strengths, lines)."""
        values = self.values.clamp(min=0)[..., None, :]
        shrunk = 1 / (values + 1 / strengths[:, None])  # (…, strengths, width)
        leverage = self.leverage + (shrunk @ (self.remaining**2).mT) * self.weights
        error = self._squared - 2 * (shrunk @ self._products.mT)
        # In blocks of strengths: arrays of all together may not stay in the processor's cache.
        for some in row_slices(len(strengths), self.remaining.numel(), _NUMBERS_IN_CACHE):
            scaled = self.remaining[..., None, :, :] * shrunk[..., some, None, :]
            error[..., some, :] += (scaled @ self._factor[..., None, :, :]).square_().sum(-1)
        return self.weights * error / (1 - leverage).clamp(min=1e-6) ** 2


def _gains_alone(parts: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the gain of each of many groups alone, beside a constant: (groups,).

    ``parts`` (groups, lines, width) are the columns of groups of one width. The gains equal those of
    ``_best_strength`` with the critical value 0.
    """
    solved = weights.new_ones(len(targets)) / (weights.sum() + 1 / _CONSTANT_STRENGTH).sqrt()
    weight, weighted_targets = weights[:, None], weights[:, None] * targets
    residual = targets - solved[:, None] * (solved @ weighted_targets)
    remaining = parts - solved[:, None] * (solved @ (weight * parts))[:, None]
    schur = (parts * weight).mT @ remaining
    values, vectors = torch.linalg.eigh((schur + schur.mT) / 2)
    remaining = remaining @ vectors
    by_strength = _ErrorsByStrength(
        residual, solved**2 * weights, weights, remaining, values, remaining.mT @ weighted_targets
    )
    total = by_strength.without.sum()
    least = by_strength.errors(_STRENGTHS.to(targets.device)).sum(-1).amin(-1)
    return 1 - torch.minimum(least, total) / total


# -- heads around their predictions -------------------------------------------------------------------


def loo_covariance(residual: Tensor, mean_covariance: Tensor, weights: Tensor) -> Tensor:
    """Compute the covariance of heads around their leave-one-out predictions: (size, size).

    ``residual`` (lines, size) are the leave-one-out residuals, ``mean_covariance`` (size, size) is the mean
    of the heads' own covariances under ``weights`` (lines,). The fewer lines there are, the more the
    covariance of the residuals is shrunk to its diagonal.
    """
    weights = (weights / weights.sum().clamp(min=1e-12)).double()
    between = (residual.double() * weights[:, None]).T @ residual.double()
    lines = float(1 / (weights**2).sum().clamp(min=1e-12))  # the effective number of lines
    share = lines / (lines + len(between))
    between = share * between + (1 - share) * torch.diag(between.diagonal())
    return make_positive_definite(between + mean_covariance.double())


def predict_heads(
    regression: LooRidge, encoded: Tensor, heads: Tensor, covariances: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Fit a regression of uncertain heads, and predict each head from the others.

    Parameters
    ----------
    regression : LooRidge
        The regression, whose strengths are chosen.
    encoded : Tensor of shape (lines, columns)
        The inputs.
    heads : Tensor of shape (lines, size)
        The means of the heads.
    covariances : Tensor of shape (lines, packed)
        Their covariances.
    weights : Tensor of shape (lines,)
        Their weights in the regression.

    Returns
    -------
    means : Tensor of shape (lines, size)
        The leave-one-out predictions.
    covariance : Tensor of shape (size, size)
        The covariance of heads around these predictions (``loo_covariance``).
    """
    means = regression.fit(encoded, heads, weights)
    within = unpack((weights / weights.sum()).to(covariances.dtype) @ covariances, heads.shape[1])
    return means, loo_covariance(heads - means, within, weights)


def reliability(covariances: Tensor, prior: Tensor, metric: Tensor) -> Tensor:
    """Compute the share of the prior variance that each head's observations removed, 0 to 1: (features,).

    ``covariances`` (features, packed) belong to the heads, ``prior`` (size, size) is the covariance
    of a head without observations; variances are traces in the ``metric`` (size, size) of predictions.
    """
    remaining = weighted_traces(covariances, metric) / (prior.double() * metric).sum().clamp(min=1e-30)
    return (1 - remaining).clamp(min=1e-3, max=1.0)
