"""Fit ridge regressions by leave-one-out error, with one strength per group of columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.distributed import process_group
from headstart.linalg.packed import positive, weighted_traces
from headstart.linalg.ragged import row_slices
from headstart.linalg.row_sharded import gather_sample

MAX_COLUMNS = 256  # of one group; wider groups are reduced to their leading directions


@dataclass(frozen=True)
class Group:
    """Columns that share one strength: centred, scaled to mean square length 1, reduced where wide."""

    columns: Tensor  # (columns,): positions in the encoded metadata
    centre: Tensor  # (columns,)
    basis: Tensor  # (columns, reduced): from centred columns to those that the regression reads

    @property
    def width(self) -> int:
        """How many columns the regression reads."""
        return int(self.basis.shape[1])

    def of(self, columns: Tensor) -> Group:
        """The same group at other positions."""
        return replace(self, columns=columns)

    def read(self, encoded: Tensor) -> Tensor:
        """The columns that the regression reads: (lines, width)."""
        return (encoded[:, self.columns].double() - self.centre) @ self.basis


def make_groups(
    encoded: Tensor,
    groups: list[Tensor],
    generator: torch.Generator | None = None,
    *,
    shared: bool = False,
) -> list[Group]:
    """Prepare groups of the columns of ``encoded`` (lines, columns); a constant group has width 0.

    If the lines are ``shared``, several processes have some of them each.

    A group of more columns than ``MAX_COLUMNS`` (or than lines) is reduced to its leading principal
    directions: exactly where that is cheap, otherwise by a randomised decomposition.
    """
    made = []
    for columns in groups:
        part = encoded[:, columns].double()
        if shared and not process_group().is_single:
            made.append(_shared_group(columns, part))
            continue
        size = (part**2).sum() / max(1, len(part))
        centre = part.mean(0) if len(part) else part.new_zeros(part.shape[1])
        part = part - centre
        lines, width = part.shape
        length = (part**2).sum() / max(1, lines)
        if width == 0 or lines < 2 or float(length) <= 1e-10 * float(size):
            basis = part.new_zeros(width, 0)
        elif width <= min(MAX_COLUMNS, lines):
            basis = torch.eye(width, dtype=part.dtype) / length.sqrt()
        else:
            basis = leading_directions(part, min(MAX_COLUMNS, lines - 1), generator) / length.sqrt()
        made.append(Group(columns, centre, basis))
    return made


def _shared_group(columns: Tensor, part: Tensor) -> Group:
    """A group of columns whose lines several processes have."""
    lines, width = process_group().span(len(part))[1], part.shape[1]
    if width > min(MAX_COLUMNS, lines):  # few lines, or few directions of many columns
        return make_groups(process_group().all_gather(part), [torch.arange(width)])[0].of(columns)
    size = process_group().sum_number(float((part**2).sum())) / max(1, lines)
    centre = process_group().all_reduce_sum(part.sum(0)) / max(1, lines)
    length = process_group().sum_number(float(((part - centre) ** 2).sum())) / max(1, lines)
    if width == 0 or lines < 2 or length <= 1e-10 * size:
        return Group(columns, centre, part.new_zeros(width, 0))
    return Group(columns, centre, torch.eye(width, dtype=part.dtype) / length**0.5)


def leading_directions(part: Tensor, rank: int, generator: torch.Generator | None = None) -> Tensor:
    """The leading principal directions of centred columns (lines, columns): (columns, rank)."""
    lines, width = part.shape
    if min(lines, width) <= 2 * MAX_COLUMNS:
        if lines <= width:
            values, vectors = torch.linalg.eigh(part @ part.T)
            values, vectors = values[-rank:], vectors[:, -rank:]
            kept = values > 1e-9 * values[-1]
            exact: Tensor = part.T @ vectors[:, kept] / values[kept].sqrt()
            return exact
        of_columns: Tensor = torch.linalg.eigh(part.T @ part).eigenvectors
        return of_columns[:, -rank:]
    basis = torch.randn(width, rank + 16, dtype=part.dtype, generator=generator)
    for _ in range(4):
        basis = torch.linalg.qr(part.T @ torch.linalg.qr(part @ basis).Q).Q
    _, _, turn = torch.linalg.svd(part @ basis, full_matrices=False)
    leading: Tensor = (basis @ turn.T)[:, :rank]
    return leading


_MAX_GROUPS = 16  # with a strength of their own; where there are more, the least useful share one

_PASSES = 3  # over the groups

_CONSTANT = 1e6  # prior variance of the constant relative to the noise: it is not shrunk

_LINES_TO_CHOOSE = 2**17  # lines that strengths are chosen from, at most

_COPIES = 4  # of a block of lines that are held at a time

# Prior variance of what a group contributes, relative to the noise.
_STRENGTHS = torch.logspace(-3, 2, 16, dtype=torch.float64)


class LooRidge:
    """y_i = B·[x_i; 1] + residual, where each group of columns has a prior variance, its "strength".

    ``choose`` finds the strengths by the closed-form leave-one-out error, with "not at all" among the
    choices; ``fit`` finds B and the prediction of every line from all other lines. If lines are ``shared``,
    several processes have some of them each.
    """

    def __init__(self, groups: list[Group], *, shared: bool = False) -> None:
        self.groups, self.shared = groups, shared and not process_group().is_single
        self.members = [[position] for position in range(len(groups))]  # the original groups in each group
        self.tried = len(groups)  # also those that come to share one strength
        self.strengths = torch.zeros(len(groups), dtype=torch.float64)
        self.gains = torch.zeros(len(groups), dtype=torch.float64)  # share of the error that each removes
        self.coefficients = torch.zeros(1, 0, dtype=torch.float64)

    # -- strengths --------------------------------------------------------------------------------

    def choose(self, encoded: Tensor, targets: Tensor, weights: Tensor, root: Tensor) -> None:
        """Choose the strength of each group, one after the other, by the leave-one-out error.

        Errors of ``targets`` (lines, size) are measured as |Δ·root|², so ``root`` (size, size) says what a
        difference does to predictions; ``weights`` (lines,) say how well a target is known. A group is
        let in only if it helps more than the best of so many useless groups would help by chance.
        """
        if not self.groups:
            return
        if self.shared:
            encoded, targets, weights = gather_sample(_LINES_TO_CHOOSE, encoded, targets, weights)
        elif len(encoded) > _LINES_TO_CHOOSE:  # so many say it well enough
            every = torch.linspace(0, len(encoded) - 1, _LINES_TO_CHOOSE, dtype=torch.float64)
            some = every.long()
            encoded, targets, weights = encoded[some], targets[some], weights[some]
        weights = _relative(weights)
        goal = targets.double() @ root.double()
        parts = [group.read(encoded) for group in self.groups]
        if len(self.groups) > _MAX_GROUPS:
            parts = self._pool(parts, goal, weights)
        level = _chance_level(self.tried, len(goal))
        design = torch.cat([*parts, goal.new_ones(len(goal), 1)], dim=1)
        owner = torch.cat([torch.full((part.shape[1],), g) for g, part in enumerate(parts)])
        owner = torch.cat([owner, torch.tensor([-1])])
        for _ in range(_PASSES):
            before = self.strengths.clone()
            for g, part in enumerate(parts):
                if part.shape[1]:
                    best = _best_strength(design, owner, self.strengths, g, goal, weights, level)
                    self.strengths[g], self.gains[g] = best
            if torch.equal(before, self.strengths):
                break

    def _pool(self, parts: list[Tensor], goal: Tensor, weights: Tensor) -> list[Tensor]:
        """Let the groups that say least on their own share one strength from now on."""
        constant, none = goal.new_ones(len(goal), 1), torch.zeros(1)
        gains = torch.zeros(len(parts))
        for g, part in enumerate(parts):
            if part.shape[1]:
                owner = torch.tensor([0] * part.shape[1] + [-1])
                design = torch.cat([part, constant], 1)
                gains[g] = _best_strength(design, owner, none, 0, goal, weights, torch.zeros(()))[1]
        order = torch.argsort(gains, descending=True).tolist()
        own, shared = sorted(order[: _MAX_GROUPS - 1]), sorted(order[_MAX_GROUPS - 1 :])
        columns = torch.cat([self.groups[g].columns for g in shared])
        centre = torch.cat([self.groups[g].centre for g in shared])
        blocks = [self.groups[g].basis for g in shared]
        basis: Tensor = torch.block_diag(*blocks) / len(shared) ** 0.5  # type: ignore[no-untyped-call]
        pooled = torch.cat([parts[g] for g in shared], dim=1) / len(shared) ** 0.5
        if pooled.shape[1] > min(MAX_COLUMNS, len(pooled)):
            lead = leading_directions(pooled, min(MAX_COLUMNS, len(pooled) - 1))
            basis, pooled = basis @ lead, pooled @ lead
        self.groups = [self.groups[g] for g in own] + [Group(columns, centre, basis)]
        self.members = [self.members[g] for g in own] + [[m for g in shared for m in self.members[g]]]
        self.strengths = torch.zeros(len(self.groups), dtype=torch.float64)
        self.gains = torch.zeros(len(self.groups), dtype=torch.float64)
        return [parts[g] for g in own] + [pooled]

    # -- coefficients -----------------------------------------------------------------------------

    def fit(self, encoded: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Find the coefficients; returns the prediction of each line from all others: (lines, size).

        ``targets`` is (lines, size), ``weights`` (lines,). The smaller of two equal systems of equations
        is solved: that of the columns or that of the lines.
        """
        columns = 1 + sum(group.width for group, used in self._used() if used)
        start, whole = process_group().span(len(encoded)) if self.shared else (0, len(encoded))
        if columns > whole:
            if self.shared:
                every = (process_group().all_gather(each) for each in (encoded, targets, weights))
                return self._fit_by_lines(*every)[start : start + len(encoded)]
            return self._fit_by_lines(encoded, targets, weights)
        if self.shared:
            usual = process_group().sum_number(float(weights.double().sum())) / whole
            weights = weights.double() / max(usual, 1e-12)
        else:
            weights = _relative(weights)
        parts = list(row_slices(len(encoded), _COPIES * 8 * (columns + targets.shape[1])))
        normal = torch.zeros(columns, columns, dtype=torch.float64)
        linear = torch.zeros(columns, targets.shape[1], dtype=torch.float64)
        for part in parts:
            design, ridge = self._design(encoded[part])
            weighted = design * weights[part, None]
            normal += weighted.T @ design
            linear += weighted.T @ targets[part].double()
        if self.shared:
            normal, linear = process_group().all_reduce_sum(normal), process_group().all_reduce_sum(linear)
            ridge = self._design(encoded[:0])[1]  # also if this process has no lines
        lower = torch.linalg.cholesky(normal + torch.diag(ridge))
        self.coefficients = torch.cholesky_solve(linear, lower)
        predicted = torch.empty_like(targets)
        for part in parts:
            design = self._design(encoded[part])[0] if len(parts) > 1 else design
            solved = torch.linalg.solve_triangular(lower, design.T, upper=False)
            predicted[part] = self._left_out(design, targets[part], (solved**2).sum(0) * weights[part])
        return predicted

    def _fit_by_lines(self, encoded: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        weights = _relative(weights)
        design, ridge = self._design(encoded)
        scale = weights.clamp(min=1e-12).sqrt()[:, None]
        scaled = scale * design
        system = (scaled / ridge) @ scaled.T + torch.eye(len(scaled), dtype=scaled.dtype)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        self.coefficients = (scaled / ridge).T @ (inverse @ (scale * targets.double()))
        return self._left_out(design, targets, 1 - inverse.diagonal())

    def _left_out(self, design: Tensor, targets: Tensor, leverage: Tensor) -> Tensor:
        """What all other lines predict of each, from its share in its own prediction (``leverage``)."""
        goal = targets.double()
        residual = goal - design @ self.coefficients
        loo: Tensor = goal - residual / (1 - leverage.clamp(0, 1 - 1e-6))[:, None]
        return loo.to(targets.dtype)

    def _used(self) -> list[tuple[Group, bool]]:
        """The groups, and whether each is let in."""
        return [(g, bool(s > 0)) for g, s in zip(self.groups, self.strengths, strict=True)]

    def map(self, width: int) -> tuple[Tensor, Tensor]:
        """The coefficients as one matrix on encoded metadata, and a constant: (width, size), (size,)."""
        size = self.coefficients.shape[1]
        matrix, constant = torch.zeros(width, size, dtype=torch.float64), self.coefficients[-1].clone()
        start = 0
        for group, strength in zip(self.groups, self.strengths, strict=True):
            if strength > 0 and group.width:
                own = group.basis @ self.coefficients[start : start + group.width]
                matrix.index_add_(0, group.columns, own)
                constant -= group.centre @ own
                start += group.width
        return matrix, constant

    def _design(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """The columns let in and a constant (lines, columns + 1), and the ridge of each."""
        parts, ridges = [], []
        for group, strength in zip(self.groups, self.strengths, strict=True):
            if strength > 0 and group.width:
                parts.append(group.read(encoded))
                ridges.append(torch.full((group.width,), 1.0 / float(strength), dtype=torch.float64))
        parts.append(torch.ones(len(encoded), 1, dtype=torch.float64))
        ridges.append(torch.tensor([1 / _CONSTANT], dtype=torch.float64))
        return torch.cat(parts, 1), torch.cat(ridges)


def _relative(weights: Tensor) -> Tensor:
    return (weights / weights.mean().clamp(min=1e-12)).double()


def _chance_level(tried: int, lines: int) -> Tensor:
    """How many standard errors the best of so many useless groups may well seem to help.

    The largest of n normal numbers is about √(2·log n); of few lines the tails are longer.
    """
    normal = (2 * torch.log(torch.tensor(tried + 1.0))).sqrt()
    return normal * (1 + (normal**2 + 1) / (4 * max(1, lines)))


def _best_strength(
    design: Tensor, owner: Tensor, strengths: Tensor, group: int, goal: Tensor, weights: Tensor, level: Tensor
) -> tuple[float, float]:
    """The strength of one group with the least leave-one-out error given the others', and its gain.

    In the eigenvectors of the group's Schur complement every strength costs only a product.
    """
    strength_of = strengths[owner.clamp(min=0)]
    others = (owner == -1) | ((owner != group) & (strength_of > 0))
    ridge = torch.where(owner == -1, 1 / _CONSTANT, 1 / strength_of.clamp(min=1e-12).double())
    rest, own = design[:, others], design[:, owner == group]
    weighted_goal = weights[:, None] * goal
    lower = torch.linalg.cholesky((rest * weights[:, None]).T @ rest + torch.diag(ridge[others]))
    half = torch.linalg.solve_triangular(lower, rest.T, upper=False)  # (others, lines)
    fitted = half.T @ (half @ weighted_goal)
    leverage = (half**2).sum(0) * weights
    remaining = own - half.T @ (half @ (weights[:, None] * own))  # what the others leave of the group
    schur = (own * weights[:, None]).T @ remaining
    values, turn = torch.linalg.eigh((schur + schur.T) / 2)
    remaining = remaining @ turn
    linear = remaining.T @ weighted_goal
    without = (weights[:, None] * ((goal - fitted) / (1 - leverage).clamp(min=1e-6)[:, None]) ** 2).sum(1)
    best, gain, least = 0.0, 0.0, without.sum()
    for strength in _STRENGTHS.tolist():
        shrunk = 1 / (values.clamp(min=0) + 1 / strength)
        more = remaining @ (shrunk[:, None] * linear)
        with_group = leverage + (remaining**2 @ shrunk) * weights
        residual = (goal - fitted - more) / (1 - with_group).clamp(min=1e-6)[:, None]
        error = (weights[:, None] * residual**2).sum(1)
        if error.sum() < least:
            better = without - error
            sure = better.sum() / (better.std(correction=0) * len(better) ** 0.5).clamp(min=1e-30)
            # The best of so many groups correlates by chance with a square of about 2·log(groups) / lines.
            chance = level**2 / (2 * len(better))
            if sure > level and better.sum() > chance * without.sum():
                best, gain, least = strength, float(better.sum() / without.sum()), error.sum()
    return best, gain


def loo_covariance(residual: Tensor, spread: Tensor, weights: Tensor) -> Tensor:
    """The covariance of heads around their leave-one-out predictions: (size, size).

    ``residual`` (lines, size) are leave-one-out residuals, ``spread`` (size, size) the mean of the heads'
    own covariances under ``weights`` (lines,). Few lines span few directions: then only the variances
    are believed.
    """
    weights = (weights / weights.sum().clamp(min=1e-12)).double()
    between = (residual.double() * weights[:, None]).T @ residual.double()
    lines = float(1 / (weights**2).sum().clamp(min=1e-12))  # the effective number of lines
    believed = lines / (lines + len(between))
    between = believed * between + (1 - believed) * torch.diag(between.diagonal())
    return positive(between + spread.double())


def reliability(spread: Tensor, prior: Tensor, metric: Tensor) -> Tensor:
    """How much of what is believed of each head comes from its own observations, 0 to 1: (features,).

    ``spread`` (features, packed) are the heads' covariances, ``prior`` (size, size) that of a head
    without observations; both are measured by what they do to predictions (``metric``).
    """
    unknown = weighted_traces(spread, metric) / (prior.double() * metric).sum().clamp(min=1e-30)
    return (1 - unknown).clamp(min=1e-3, max=1.0)
