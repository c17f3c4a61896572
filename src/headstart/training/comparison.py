"""Comparison of candidate adapters by their predictions of held-out features.

``predict_held_out`` predicts, ``CandidateOutcomes`` collects the predictions of one candidate, and ``beats``
compares two. ``blend_outcomes`` blends the predictions of networks with those of the closed form.
``score_means`` gives the errors of row and column means on the same features, for comparison.
``predict_held_out_rows`` predicts known features at held-out rows, for their calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.config import Config
from headstart.core.clicks import is_click
from headstart.core.devices import CPU, compute_on, move
from headstart.core.likelihood import Likelihood
from headstart.core.neighbours import LocalPart, Neighbours
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Knowledge
from headstart.core.value_references import RowColumnMeans
from headstart.table.cells import Cells, offsets
from headstart.table.kinds import KindType
from headstart.training.calibration import Outcome, RowOutcomes, shrinkage
from headstart.training.episodes import Episode, Tasks, random_ranks
from headstart.training.known_neighbours import fit_known_weights
from headstart.training.meta_training import validation_episodes

_CELLS_AT_ONCE = 2**18  # observations of the episodes that are predicted together

_ZEROS = 2**17  # cells without a click that are predicted, of all features together

_MIN_ZERO_ROWS = 200  # rows without a click that are ranked among the clicks of a feature

_ROW_SHARE, _MOST_ROWS = 0.1, 200  # of the rows, held out in one fold

_LEAST_ROWS = 3  # held out in one fold; a table with fewer has no calibration of known features

_MOST_FEATURES = 200  # whose observations are targets


class Verdict(Config):
    """Errors of one candidate, by shots.

    They are mean squared errors of observations, on the models' scale, and for clicks 1 - NDCG of the ranking
    of all rows.
    """

    error: tuple[float, ...]
    standard_error: tuple[float, ...]  # over features


@dataclass(frozen=True)
class FeatureErrors:
    """Errors of features at one number of shots."""

    features: Tensor  # (features,)
    squared: Tensor  # (features,): sums of squared errors; for clicks 1 - NDCG
    counts: Tensor  # (features,): of observations, or the sums of their weights; for clicks 1

    @classmethod
    def of(cls, outcome: Outcome) -> FeatureErrors:
        """Sum the squared errors of each feature, or compute the error of its ranking of rows."""
        squared = outcome.weighted_squares((outcome.predictive.mean - outcome.truth) ** 2)
        features, owner = torch.unique(outcome.feature, return_inverse=True)
        counts = torch.bincount(owner, weights=None if outcome.weights is None else outcome.weights.double())
        sums = torch.bincount(owner, weights=squared.double())
        clicks = is_click(outcome.predictive.kinds)
        if bool(clicks.any()):
            ranked = torch.zeros_like(features, dtype=torch.bool).index_fill_(0, owner[clicks], True)
            weights = outcome.weighted(torch.ones_like(outcome.truth))
            ndcg = weighted_ndcg(outcome.predictive.mean, outcome.truth, weights, owner)
            sums, counts = torch.where(ranked, 1 - ndcg, sums), torch.where(ranked, 1, counts)
        return cls(features, sums, counts)

    @classmethod
    def concatenate(cls, parts: Sequence[FeatureErrors]) -> FeatureErrors:
        """Concatenate the errors of different features."""
        return cls(
            torch.cat([part.features for part in parts]),
            torch.cat([part.squared for part in parts]),
            torch.cat([part.counts for part in parts]),
        )

    @property
    def mean(self) -> float:
        """The mean squared error of all observations."""
        return float(self.squared.sum() / self.counts.sum())

    @property
    def standard_error(self) -> float:
        """The standard error of ``mean``, as a ratio of two sums over features; 0 for a single feature."""
        if len(self.features) < 2:  # the residual below is 0 up to rounding
            return 0.0
        residuals = self.squared - self.mean * self.counts
        return float((residuals**2).sum().sqrt() / self.counts.sum())


@dataclass(frozen=True)
class CandidateOutcomes:
    """Outcomes of one candidate in all folds, by shots."""

    outcomes: dict[int, Outcome]

    def errors(self) -> dict[int, FeatureErrors]:
        """Return the errors of features, by shots."""
        return {shots: FeatureErrors.of(outcome) for shots, outcome in self.outcomes.items()}

    def verdict(self) -> Verdict:
        """Return the mean error and its standard error over features, by shots."""
        return verdict_of(self.errors())


def verdict_of(errors: Mapping[int, FeatureErrors]) -> Verdict:
    """Return the mean error and its standard error over features, by shots."""
    return Verdict(
        error=tuple(error.mean for error in errors.values()),
        standard_error=tuple(error.standard_error for error in errors.values()),
    )


@torch.no_grad()
def predict_held_out(
    adapter: Adapter,
    likelihood: Likelihood,
    tasks: Tasks,
    *,
    seed: int,
    all_binary: bool = False,
    neighbours: Neighbours | None = None,
    rows: int | None = None,
) -> dict[int, Outcome]:
    """Predict the targets of held-out features at several numbers of shots.

    Return outcomes by shots in main memory, with features identified by their position in ``tasks``.
    ``all_binary`` marks all values as binary even if the model treats them as numbers. With ``neighbours``,
    the features of the rows' table, outcomes have the local parts of the predictions. The targets of click
    features are all ``rows`` of the table, by default those of the tasks (``add_zeros``).
    """
    with compute_on(tasks.batch.kinds.device):
        outcomes = _predict_targets(adapter, likelihood, tasks, seed, all_binary, neighbours, rows)
    return {shots: move(outcome, CPU) for shots, outcome in outcomes.items()}


def _predict_targets(
    adapter: Adapter,
    likelihood: Likelihood,
    tasks: Tasks,
    seed: int,
    all_binary: bool,
    neighbours: Neighbours | None,
    rows: int | None,
) -> dict[int, Outcome]:
    """Predict the targets on the device of ``tasks``: outcomes by shots."""
    episodes = validation_episodes(tasks, VALIDATION_SHOTS[-1], seed)
    parts: dict[int, list[Outcome]] = {shots: [] for shots in episodes}
    for fold in torch.unique(tasks.fold).tolist():
        refined = adapter.refine_in_blocks(tasks.states[fold])  # once for all numbers of shots
        in_fold = {
            shots: episode
            for shots, by_fold in episodes.items()
            for episode in by_fold
            if episode.states is tasks.states[fold]
        }
        for group in _split_by_size(in_fold):
            targets_by_shots = [
                add_zeros(episode.targets, episode.context, seed, rows) for episode in group.values()
            ]
            targets = Cells.concatenate(targets_by_shots)
            context = FeatureBatch.concatenate([episode.context for episode in group.values()])
            heads = adapter.adapt(context, refined)
            predictive = predict_cells(heads, refined, targets, context.kinds, likelihood)
            local = None
            if neighbours is not None:
                observed = predict_cells(heads, refined, context.cells, context.kinds, likelihood)
                residuals = observed.residuals(context.cells.values)
                local = neighbours.shifts_at_strength_one(context, residuals, targets)
            binary = torch.full((len(targets.index),), all_binary) | (predictive.kinds == KindType.BINARY)
            features = [
                torch.nonzero((tasks.batch.shots > shots) & (tasks.fold == fold))[:, 0] for shots in group
            ]
            outcome = Outcome(
                predictive, targets.values, torch.cat(features)[targets.lines], binary, targets.weights, local
            )
            sizes = [len(cells.index) for cells in targets_by_shots]
            for shots, part in zip(group, _split_outcome(outcome, sizes), strict=True):
                parts[shots].append(part)
    return {shots: concatenate_outcomes(outcomes) for shots, outcomes in parts.items()}


def _split_by_size(episodes: dict[int, Episode]) -> Iterator[dict[int, Episode]]:
    """Divide the episodes by shots into groups of at most ``_CELLS_AT_ONCE`` observations, or of one each.

    The episodes of a group are predicted together, because on a small table calls cost more than numbers.
    """
    group: dict[int, Episode] = {}
    count = 0
    for shots, episode in episodes.items():
        size = len(episode.context.cells.index) + len(episode.targets.index)
        if group and count + size > _CELLS_AT_ONCE:
            yield group
            group, count = {}, 0
        group[shots] = episode
        count += size
    if group:
        yield group


def _split_outcome(outcome: Outcome, sizes: list[int]) -> Iterator[Outcome]:
    """Divide an outcome into consecutive parts of these ``sizes``."""
    start = 0
    for size in sizes:
        yield outcome.at(slice(start, start + size))
        start += size


@torch.no_grad()
def score_means(known: Cells, tasks: Tasks, *, seed: int) -> dict[int, FeatureErrors]:
    """Return the errors of row and column means at the targets of ``predict_held_out``, by shots.

    Parameters
    ----------
    known : Cells
        The observations of known features on the models' scale, one line per row.
    tasks : Tasks
        The held-out features, all of one kind, in one fold with the states of all rows.
    seed : int
        The seed of the contexts.
    """
    means, errors, tasks = RowColumnMeans(known), {}, move(tasks, CPU)
    rating = tasks.batch.kinds[:1] <= KindType.RATING
    for shots, (episode,) in validation_episodes(tasks, VALIDATION_SHOTS[-1], seed).items():
        context, targets = episode.context.cells, episode.targets
        predicted = (means.rows[targets.index] * means.fold_features(context)[targets.lines]).sum(1)
        predicted = torch.where(rating, predicted.clamp(0, 1), predicted)
        weights = torch.ones_like(predicted) if targets.weights is None else targets.weights.double()
        features = torch.nonzero(tasks.batch.shots > shots)[:, 0]
        squared = weights * (predicted - targets.values) ** 2
        sums, counts = (torch.bincount(targets.lines, part, len(features)) for part in (squared, weights))
        errors[shots] = FeatureErrors(features, sums, counts)
    return errors


def add_zeros(targets: Cells, context: FeatureBatch, seed: int, rows: int | None = None) -> Cells:
    """Add cells without a click to the targets of click features, with the value 0; clicks have the value 1.

    They are those of the same random rows for all features. The weights of the zeros of a feature add up to
    the number of its rows without a click, of all ``rows`` of the table, by default the width of ``targets``.
    """
    kinds, cells = context.kinds, context.cells
    lines = torch.nonzero(is_click(kinds))[:, 0]
    if len(lines) == 0:
        return targets
    width = targets.width
    most = max(_MIN_ZERO_ROWS, _ZEROS // len(lines))
    sample = torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:most].to(lines)
    keys = (lines[:, None] * width + sample).ravel()
    observed = torch.cat([part.lines * width + part.index for part in (targets, cells)])
    keys = keys[~torch.isin(keys, observed)]
    zero_lines = keys // width
    sampled = torch.bincount(zero_lines, minlength=len(kinds))
    without = (width if rows is None else rows) - targets.counts - cells.counts
    weights = targets.values.new_ones(len(targets.index)) if targets.weights is None else targets.weights
    values = torch.where(is_click(kinds)[targets.lines], 1.0, targets.values)
    zero_weights = (without / sampled.clamp(min=1)).to(weights)[zero_lines]
    return Cells.from_pairs(
        torch.cat([targets.lines, zero_lines]),
        torch.cat([targets.index, (keys % width).to(targets.index)]),
        torch.cat([values, torch.zeros_like(zero_weights)]),
        len(targets),
        width,
        torch.cat([weights, zero_weights]),
    )


def weighted_ndcg(scores: Tensor, truth: Tensor, weights: Tensor, lists: Tensor) -> Tensor:
    """Return the normalised discounted cumulative gain of each list, over its whole length: (lists,).

    Parameters
    ----------
    scores, truth : Tensor of shape (n,)
        The scores of candidates, and whether they are relevant: 1 or 0.
    weights : Tensor of shape (n,)
        The number of candidates that each one with the value 0 stands for.
    lists : Tensor of shape (n,)
        The list of each candidate, from 0 up.

    Examples
    --------
    >>> weighted_ndcg(torch.tensor([3.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([2.0, 1.0]),
    ...               torch.tensor([0, 0]))  # the second candidate has the rank 3: 1 / log2(1 + 3)
    tensor([0.5000], dtype=torch.float64)
    """
    count = int(lists.max()) + 1
    order = torch.argsort(truth, stable=True)  # of equal scores, those of zeros come first
    order = order[torch.argsort(scores[order], stable=True, descending=True)]
    order = order[torch.argsort(lists[order], stable=True)]
    lists, relevant = lists[order], truth[order] > 0.5
    lengths = torch.where(relevant, 1.0, weights[order].double())
    starts = offsets(torch.bincount(lists, lengths, count))
    ranks = lengths.cumsum(0) - starts[lists]
    ideal_ranks = relevant.cumsum(0) - offsets(torch.bincount(lists[relevant], minlength=count))[lists]
    gains, ideal_gains = (
        torch.where(relevant, 1 / torch.log2(1 + part.clamp(min=1)), 0.0) for part in (ranks, ideal_ranks)
    )
    sums, ideal_sums = (torch.bincount(lists, part.double(), count) for part in (gains, ideal_gains))
    return sums / ideal_sums.clamp(min=1e-12)


def concatenate_outcomes(parts: list[Outcome]) -> Outcome:
    """Concatenate outcomes of different features; weights are 1 in an outcome without weights.

    ``local`` and ``unit`` are parts of all outcomes or of none.
    """
    if len(parts) == 1:
        return parts[0]
    predictives = [part.predictive for part in parts]
    names = ("logits", "variance", "noise", "kinds")
    tensors = {name: torch.cat([getattr(part, name) for part in predictives]) for name in names}
    predictive = Predictive(**tensors, likelihood=predictives[0].likelihood)
    others = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in ("truth", "feature", "binary")
    }
    optional = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("local", "unit")
        if getattr(parts[0], name) is not None
    }
    if any(part.weights is not None for part in parts):
        optional["weights"] = torch.cat([part.weighted(torch.ones_like(part.truth)) for part in parts])
    return Outcome(predictive, **others, **optional)


def beats(candidate: CandidateOutcomes, other: CandidateOutcomes, standard_errors: float) -> bool:
    """Return whether the error of ``candidate`` is lower by more than ``standard_errors`` of the difference.

    Errors are relative to the total error at the same number of shots. The standard error of the difference
    is computed over features, because errors of one feature are correlated.
    """
    errors, other_errors = candidate.errors(), other.errors()
    count = max(int(error.features.max()) for error in errors.values()) + 1
    gains = torch.zeros(count, dtype=torch.float64)  # by feature, summed over numbers of shots
    present = torch.zeros(count, dtype=torch.bool)
    for shots in errors.keys() & other_errors.keys():
        error, other_error = errors[shots], other_errors[shots]
        total = other_error.squared.sum().clamp(min=1e-12)
        gains[error.features] += (other_error.squared - error.squared) / total
        present[error.features] = True
    gains = gains[present]
    standard_error = float(gains.std(correction=0)) * len(gains) ** 0.5
    return bool(float(gains.sum()) > standard_errors * standard_error)


# -- the blend of networks and closed form -----------------------------------------------------------


@torch.no_grad()
def blend_outcomes(
    adapter: Adapter, likelihood: Likelihood, tasks: Tasks, *, seed: int, all_binary: bool
) -> tuple[dict[int, Outcome], dict[int, Outcome]]:
    """Set the shares of the networks in an adapter's blend; return the outcomes of blend and closed form.

    The shares minimise the squared error at each number of shots, and do not increase with the shots
    (isotonic regression): with more shots the networks improve less on the closed form.
    """
    by_share = {}
    for share in (0.0, 1.0):
        adapter.set_blend_shares(share)
        by_share[share] = predict_held_out(adapter, likelihood, tasks, seed=seed, all_binary=all_binary)
    closed, networks = by_share[0.0], by_share[1.0]
    if not closed:  # no feature has a target
        return networks, closed
    best = [_fit_share(networks[shots], closed[shots], usual=0.5) for shots in closed]
    shares = isotonic_decreasing(*(torch.stack(part) for part in zip(*best, strict=True))).clamp(0, 1)
    position = torch.bucketize(torch.tensor(VALIDATION_SHOTS), torch.tensor(list(closed)), right=True) - 1
    adapter.set_blend_shares(shares[position.clamp(min=0)])
    blended = {
        shots: blend(networks[shots], closed[shots], float(share))
        for shots, share in zip(closed, shares, strict=True)
    }
    return blended, closed


def smooth_shares(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[float]:
    """Return the shares of the first outcomes in blends with the second, at consecutive numbers of shots.

    They minimise the squared error, are shrunk to 0, and smoothed: the neighbours of a number of shots count
    half. Without shots there is other evidence, which is not smoothed.
    """
    shares, weights = (
        torch.stack(part) for part in zip(*(_fit_share(*pair, usual=0.0) for pair in pairs), strict=True)
    )
    products, (first, *_) = torch.stack([shares * weights, weights]), shares.tolist()
    padded = nn.functional.pad(products[:, 1:], (1, 1))
    numerator, denominator = padded[:, 1:-1] + 0.5 * (padded[:, :-2] + padded[:, 2:])
    smooth = (numerator / denominator).tolist() if len(shares) > 1 else []
    return [min(max(share, 0.0), 1.0) for share in (first, *smooth)]


def _fit_share(outcome: Outcome, other: Outcome, *, usual: float) -> tuple[Tensor, Tensor]:
    """Return the share of ``outcome`` with the least squared error, shrunk to ``usual``, and its weight."""
    difference = (outcome.predictive.mean - other.predictive.mean).double()
    error = (other.truth - other.predictive.mean).double()
    weight = other.weighted_squares(difference**2).sum().clamp(min=1e-12)
    share = other.weighted_squares(difference * error).sum() / weight
    confidence = shrinkage(other.features)
    return confidence * share + (1 - confidence) * usual, weight


def isotonic_decreasing(values: Tensor, weights: Tensor) -> Tensor:
    """Fit a non-increasing function by weighted least squares (isotonic regression).

    >>> isotonic_decreasing(torch.tensor([1.0, 0.2, 0.4]), torch.ones(3))
    tensor([1.0000, 0.3000, 0.3000])
    """
    from scipy.optimize import isotonic_regression  # slow to import; only networks need it

    fit = isotonic_regression(values.double().numpy(), weights=weights.double().numpy(), increasing=False)
    return torch.from_numpy(fit.x.copy()).to(values.dtype)  # torch cannot read a reversed view


def blend(outcome: Outcome, other: Outcome, share: float) -> Outcome:
    """Return the outcome of blended heads, given the outcomes of both and the ``share`` of the first.

    Its local part is blended, too: the weights are linear in the residuals of the context, apart from their
    prior.
    """
    first, second = outcome.predictive, other.predictive
    disagreement = share * (1 - share) * (first.logits - second.logits) ** 2
    predictive = Predictive(
        torch.lerp(second.logits, first.logits, share),
        torch.lerp(second.variance, first.variance, share) + disagreement,
        torch.lerp(second.noise, first.noise, share),
        first.kinds,
        first.likelihood,
    )
    local = None
    if outcome.local is not None and other.local is not None:
        local = torch.lerp(other.local, outcome.local, share)
    return replace(outcome, predictive=predictive, local=local)


def draw_rows(rows: int, fold: int) -> NDArray[np.bool_]:
    """Draw the rows to hold out in a fold: (rows,), none if there are few."""
    count = min(_MOST_ROWS, round(_ROW_SHARE * rows))
    held_out = np.zeros(rows, dtype=bool)
    if count >= _LEAST_ROWS:
        held_out[np.random.default_rng(fold).permutation(rows)[:count]] = True
    return held_out


def concatenate_row_outcomes(parts: list[RowOutcomes]) -> RowOutcomes:
    """Concatenate the outcomes of different folds."""
    outcomes = [
        replace(part.outcome, feature=part.outcome.feature + _MOST_ROWS * fold)  # folds have different rows
        for fold, part in enumerate(parts)
    ]
    shots, observed = (torch.cat([getattr(part, name) for part in parts]) for name in ("shots", "observed"))
    return RowOutcomes(concatenate_outcomes(outcomes), shots, observed)


@torch.no_grad()
def predict_held_out_rows(
    adapter: Adapter,
    backbone: Backbone,
    knowledge: Knowledge,
    known: FeatureBatch,
    cells: Cells,
    *,
    seed: int,
    all_binary: bool = False,
    neighbours: Neighbours | None = None,
) -> RowOutcomes | None:
    """Predict half of the observations of held-out rows from some of the others.

    Contexts have each of ``VALIDATION_SHOTS`` observations that a row has in its first half, in random order.

    Parameters
    ----------
    adapter, backbone, knowledge
        Parts that were trained without these rows.
    known : FeatureBatch
        The features of the backbone with all their observations.
    cells : Cells
        The observations of the held-out rows: rows × features.
    seed : int
        The seed of the random order.
    all_binary : bool
        Whether all values are binary, even if the model treats them as numbers.
    neighbours : Neighbours, optional
        Those of ``knowledge``; then the outcomes have the local parts of the predictions.

    Returns
    -------
    RowOutcomes or None
        None if no row has two observations.
    """
    with compute_on(knowledge.device):
        generator = torch.Generator().manual_seed(seed)
        sample = torch.randperm(len(known), generator=generator)[:_MOST_FEATURES].sort().values
        states = adapter.refine_in_blocks(knowledge.states)
        heads = adapter.adapt(replace(known, known=torch.arange(len(known))).take(sample), states)
        position = torch.full((len(known),), -1)
        position[sample] = torch.arange(len(sample))
        half, rank = cells.counts // 2, random_ranks(cells, generator)
        is_target = (rank >= half[cells.lines]) & (position[cells.index] >= 0)
        all_targets = replace(
            cells.keep(is_target), index=position[cells.index[is_target]], width=len(sample)
        )
        # All numbers of shots together: the rows are few, and calls cost more than numbers.
        rows_by_shots = [torch.nonzero(half >= max(1, size))[:, 0] for size in VALIDATION_SHOTS]
        rows = torch.cat(rows_by_shots)
        if not len(rows):
            return None
        contexts = [
            cells.keep(rank < size).take(rows_of_size)
            for size, rows_of_size in zip(VALIDATION_SHOTS, rows_by_shots, strict=True)
        ]
        context, targets = Cells.concatenate(contexts), all_targets.take(rows).transpose()
        row_states, local = backbone.states(context), None
        if neighbours is not None:
            weights = fit_known_weights(backbone, adapter, knowledge, heads, sample, known.groups, seed=seed)
            residuals = neighbours.residuals_at(row_states, context)
            shifts = LocalPart.of_new(neighbours.stack(weights)).shifts_at(targets, residuals)
            local = torch.from_numpy(shifts).float().to(knowledge.device)[:, None]
        refined = adapter.refine(row_states)
        predictive = predict_cells(heads, refined, targets, known.kinds[sample], knowledge.likelihood)
        binary = torch.full((len(targets.index),), all_binary) | (predictive.kinds == KindType.BINARY)
        outcome = Outcome(predictive, targets.values, rows[targets.index], binary, targets.weights, local)
        counts = torch.tensor([len(rows_of_size) for rows_of_size in rows_by_shots])
        sizes = torch.tensor(VALIDATION_SHOTS).repeat_interleave(counts)
        shots, observed = known.shots[sample][targets.lines], sizes[targets.index]
        return move(RowOutcomes(outcome, shots, observed), CPU)
