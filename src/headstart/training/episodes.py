"""Tasks and episodes of meta-training.

A *task* is a feature treated as new, with row states that do not depend on it. An *episode* divides the
observations of a batch of tasks into contexts and targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.core.devices import compute_on
from headstart.core.likelihood import Likelihood
from headstart.core.networks import batch_share
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import FeatureBatch, Knowledge, RowStates
from headstart.distributed import local_share, process_group
from headstart.linalg.ragged import ranks_in_line
from headstart.linalg.row_sharded import (
    gather_cells,
    gather_rows,
    global_count,
    sample_by_feature,
    select_local,
)
from headstart.table.cells import Cells, offsets, ranges
from headstart.table.times import LEAST_WEIGHT

if TYPE_CHECKING:
    from headstart.training.meta_training import MetaTrainingConfig

MOST_STATES = 2**28  # numbers in the row states of all folds: 1 GiB

MOST_FOLDS = 12

# Observations of a feature, if not all fit into memory: enough for its head, and to draw episodes from.
_LEAST_OBSERVATIONS = 512

_MOST_COPIED = 0.7  # fraction of the rows of a large table whose observations are copied

_ROWS_TOGETHER = 1 << 13  # rows of folds whose states are computed or read together: of a small table, all


# -- tasks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tasks:
    """Features treated as new. Each belongs to a fold, whose row states are computed without it."""

    batch: FeatureBatch  # its cells index the states of each feature's fold
    fold: Tensor  # (features,): the position in ``states``
    states: Sequence[RowStates]

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, features: Tensor) -> Tasks:
        """Return the tasks at the positions ``features``."""
        return Tasks(self.batch.take(features), self.fold[features], self.states)

    def hold_out(self, share: float, seed: int) -> tuple[Tasks, Tasks]:
        """Split the features at random into training and validation features.

        There is at least one of each, but no validation feature if ``share`` is 0.
        """
        group, count = features_of(self.batch.groups, len(self))
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        held_out = min(max(1, round(share * count)), count - 1) if share > 0 else 0
        rank = torch.empty_like(order)
        rank[order] = torch.arange(count)
        columns = rank[group].argsort(stable=True)
        held_columns = int((rank[group] < held_out).sum())
        return self.take(columns[held_columns:]), self.take(columns[:held_columns])

    def merge_folds(self) -> Tasks:
        """Return the tasks with small folds merged: fewer folds, each with the states of several.

        Work on a small table then takes a few operations on all folds in place of many on each.
        """
        merged, rows, parts = [], _ROWS_TOGETHER, list[list[RowStates]]()
        starts = []  # of each fold in its merged fold
        for states in self.states:
            if rows + len(states) > _ROWS_TOGETHER:
                parts.append([])
                rows = 0
            parts[-1].append(states)
            merged.append(len(parts) - 1)
            starts.append(rows)
            rows += len(states)
        if len(parts) == len(self.states):
            return self
        fold, cells = self.fold, self.batch.cells
        index = cells.index + torch.tensor(starts)[fold][cells.lines]
        together = tuple(RowStates.concatenate(states) for states in parts)
        cells = replace(cells, index=index, width=max(len(states) for states in together))
        return Tasks(self.batch.observing(cells), torch.tensor(merged)[fold], together)

    def split(self) -> list[tuple[FeatureBatch, RowStates]]:
        """Return the features and states of each fold that has features."""
        members = [torch.nonzero(self.fold == fold)[:, 0] for fold in range(len(self.states))]
        return [self.with_states(features) for features in members if len(features)]

    def with_states(self, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        """Return ``features`` of one fold as a batch, with the states of the rows in this fold."""
        return self._add_states(self.batch.take(features), features)

    def shuffle(self, seed: int) -> Tasks:
        """Shuffle the observations of each feature, for ``sample_with_states``."""
        cells = shuffle_observations(self.batch.cells, torch.Generator().manual_seed(seed))
        return replace(self, batch=self.batch.observing(cells))

    def sample_with_states(
        self, features: Tensor, most: int, generator: torch.Generator
    ) -> tuple[FeatureBatch, RowStates]:
        """Return ``with_states`` with at most ``most`` random observations of each feature.

        The tasks must be the result of ``shuffle``.
        """
        cells = sample_shuffled(self.batch.cells, features, most, generator)
        return self._add_states(self.batch.take(features, cells), features)

    def _add_states(self, batch: FeatureBatch, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        """Return the batch of ``features``, and the states of their fold."""
        states = self.states[int(self.fold[features[0]])]
        return batch.observing(replace(batch.cells, width=len(states))), states


class FoldStates(Sequence[RowStates]):
    """The row states of all folds of a backbone's features, computed when they are first read.

    Some adapters need no tasks: the closed form, if it is calibrated on other features and has a prior from
    the backbone's own heads.

    Parameters
    ----------
    backbone : Backbone
        The backbone.
    knowledge : Knowledge
        Its knowledge, with the observations of all rows.
    fold : Tensor
        The fold of each feature (features,), which its states do not read.
    count : int
        The number of folds.
    """

    def __init__(self, backbone: Backbone, knowledge: Knowledge, fold: Tensor, count: int) -> None:
        self._backbone, self._knowledge, self._fold, self._count = backbone, knowledge, fold, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, fold: int) -> RowStates: ...

    @overload
    def __getitem__(self, fold: slice) -> Sequence[RowStates]: ...

    def __getitem__(self, fold: int | slice) -> RowStates | Sequence[RowStates]:
        return self._computed[fold]

    @cached_property
    def _computed(self) -> list[RowStates]:
        """The states of each fold."""
        cells = self._knowledge.cells
        together = max(1, _ROWS_TOGETHER // max(1, len(cells)))
        with compute_on(self._knowledge.device):
            folds = torch.split(torch.arange(self._count), together)
            return [states.each(gather_rows) for some in folds for states in self._states_of(cells, some)]

    def _states_of(self, cells: Cells, folds: Tensor) -> list[RowStates]:
        """Compute the states of all rows without the features of each of ``folds``.

        A row without an observation of these features keeps its state.
        """
        fold = self._fold[cells.index]
        rows = [torch.nonzero(cells.keep(fold == number).counts)[:, 0] for number in folds]
        lengths = torch.tensor([len(some) for some in rows])
        if len(folds) == 1 and int(lengths) > _MOST_COPIED * len(cells):  # do not copy a large table
            return [self._backbone.states(cells, self._fold == folds)]
        stacked = cells.take(torch.cat(rows))
        left_out = torch.repeat_interleave(folds, lengths)[stacked.lines]
        states = self._backbone.states(stacked.keep(self._fold[stacked.index] != left_out))
        parts = torch.split(torch.arange(len(states)), lengths.tolist())
        return [
            self._knowledge.states.replace_at(some, states.take(part))
            for some, part in zip(rows, parts, strict=True)
        ]


def cross_fitted_tasks(batch: FeatureBatch, backbone: Backbone, knowledge: Knowledge, *, seed: int) -> Tasks:
    """Split the backbone's features into folds, and compute row states without the features of each fold.

    So backbone and adapter both learn from all features. ``batch`` contains all features of the backbone or,
    with their positions, the features of ``sample_features``.
    """
    generator = torch.Generator().manual_seed(seed)
    group, features = features_of(batch.groups, len(batch))
    count = min(MOST_FOLDS, features)
    order = torch.randperm(features, generator=generator)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(features) % count
    fold = fold[group]
    rows = len(knowledge.states)
    if batch.positions is None:
        cells = gather_cells(batch.cells, rows)
        batch = replace(batch, cells=cells, positions=torch.arange(len(batch)))
        return Tasks(batch, fold, FoldStates(backbone, knowledge, fold, count))
    cells = sample_by_feature(batch.cells, rows, _most_observations(knowledge), generator)
    index, states, cell_fold = cells.index.clone(), list[RowStates](), fold[cells.lines]
    for number in range(count):
        in_fold = cell_fold == number
        observed_rows, positions = torch.unique(cells.index[in_fold], return_inverse=True)
        masked = torch.zeros(len(knowledge.kinds), dtype=torch.bool)
        masked[batch.positions[fold == number]] = True
        local_rows = select_local(observed_rows, rows)[1]
        states.append(backbone.states(knowledge.cells.take(local_rows), masked).each(gather_rows))
        index[in_fold] = positions.to(index.dtype)
    return Tasks(batch.observing(replace(cells, index=index)), fold, tuple(states))


def disjoint_tasks(batch: FeatureBatch, knowledge: Knowledge) -> Tasks:
    """Return tasks of features that did not train the backbone, in one fold, as in the paper.

    Each of several processes gets the states of all rows that observed these features.
    """
    fold, states = torch.zeros(len(batch), dtype=torch.int64), knowledge.states
    if not process_group().is_single:
        cells = gather_cells(batch.cells, len(states))
        observed_rows, index = torch.unique(cells.index, return_inverse=True)
        local_rows = select_local(observed_rows, len(states))[1]
        states = states.take(local_rows).each(gather_rows)
        batch = batch.observing(replace(cells, index=index, width=len(observed_rows)))
    return Tasks(batch, fold, (states,))


def features_of(groups: Tensor | None, columns: int) -> tuple[Tensor, int]:
    """Return the number of the feature of each column, from 0 up, and the number of features.

    ``groups`` (columns,) are equal for the levels of one category; None: each column is a feature.
    """
    if groups is None:
        return torch.arange(columns), columns
    numbers, group = torch.unique(groups, return_inverse=True)
    return group, len(numbers)


def sample_features(knowledge: Knowledge, groups: Tensor | None = None, *, seed: int) -> Tensor | None:
    """Choose the backbone's features to meta-train on: ascending positions, or None for all features.

    The levels of a category (``groups``) are chosen together.

    All features are used if the states of all rows in every fold fit into memory. Otherwise the result is a
    random sample such that the states of the rows that observed these features fit.
    """
    if MOST_FOLDS * global_count(len(knowledge.states)) <= _most_rows(knowledge):
        return None
    counts = knowledge.count_shots().clamp(max=_most_observations(knowledge)).cpu()
    group, features = features_of(groups, len(counts))
    totals = torch.zeros(features, dtype=torch.float64).index_add_(0, group, counts.double())
    order = torch.randperm(features, generator=torch.Generator().manual_seed(seed))
    fitting = int((totals[order].cumsum(0) <= _most_rows(knowledge)).sum())
    return torch.nonzero(torch.isin(group, order[: max(MOST_FOLDS, fitting)]))[:, 0]


def _most_rows(knowledge: Knowledge) -> int:
    """Return the number of rows, of all folds together, whose states fit into memory."""
    states = knowledge.states
    return MOST_STATES // max(1, 2 * states.code.shape[1] + 2 * states.activation.shape[1])


def _most_observations(knowledge: Knowledge) -> int:
    """Return the most observations of one feature if features are sampled."""
    return max(_LEAST_OBSERVATIONS, _most_rows(knowledge) // max(1, len(knowledge.kinds)))


# -- episodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Episode:
    """Batch of features with contexts and targets (one line per feature)."""

    context: FeatureBatch
    targets: Cells
    states: RowStates  # computed without these features
    weights: Tensor | None = None  # (features,) in the loss; None: the number of targets

    def compact(self) -> Episode:
        """Return the episode with the states of only the rows that occur in it."""
        all_rows = torch.cat([self.context.cells.index, self.targets.index])
        rows, index = torch.unique(all_rows, return_inverse=True)
        context_index, target_index = index.split([len(self.context.cells.index), len(self.targets.index)])
        context = replace(self.context.cells, index=context_index, width=len(rows))
        targets = replace(self.targets, index=target_index, width=len(rows))
        return Episode(self.context.observing(context), targets, self.states.take(rows), self.weights)


class EpisodeDrawer:
    """Draw the episodes of each epoch.

    Without ``config.weighting`` an epoch is a random order of the features. With it, features are drawn in
    proportion to a power of their number of observations, so that the features of a batch have similar
    weights in the loss (see ``feature_weights``).
    """

    def __init__(self, tasks: Tasks, config: MetaTrainingConfig, *, seed: int) -> None:
        self.config = config
        self.features = torch.nonzero(tasks.batch.shots >= 1)[:, 0]  # the others have no target
        # A limit makes the cost of an episode independent of the number of observations of a feature.
        self.most = None if config.max_targets is None else config.max_shots + config.max_targets
        self.tasks = tasks if self.most is None else tasks.shuffle(seed)
        self.mean_weights = None
        if config.weighting is not None and len(self.features):
            counts = tasks.batch.shots[self.features]
            self.mean_weights = mean_weights(counts, config.max_shots, config.weighting)

    def epoch(self, generator: torch.Generator) -> Iterator[Episode]:
        """Yield the episodes of one epoch."""
        for features in self._batches(self._draw_features(generator), generator):
            if len(features):
                yield self._draw_episode(features, generator)

    def _draw_features(self, generator: torch.Generator) -> Tensor:
        """Draw the features of an epoch."""
        weighting, most = self.config.weighting, self.config.epoch_features
        if weighting is None or len(self.features) == 0:
            return self.features[torch.randperm(len(self.features), generator=generator)][:most]
        number = min(len(self.features), most or len(self.features))
        counts = self.tasks.batch.shots[self.features]
        return self.features[draw_features(counts, number, weighting, generator)]

    def _batches(self, order: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Split features into batches, each within one fold, in random order."""
        if len(self.tasks.states) == 1:
            yield from self.config.batches(order)
            return
        size = self.config.batch_for(len(order))
        batches = [
            batch
            for fold in range(len(self.tasks.states))
            for batch in torch.split(order[self.tasks.fold[order] == fold], size)
        ]
        for number in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[number]

    def _draw_episode(self, features: Tensor, generator: torch.Generator) -> Episode:
        """Draw an episode of ``features`` of one fold."""
        config = self.config
        if self.most is None:
            batch, states = self.tasks.with_states(features)
        else:
            batch, states = self.tasks.sample_with_states(features, self.most, generator)
        shots = draw_shots(batch, config.max_shots, generator, config.shots)
        weights = torch.ones(len(features)) if config.average == "features" else None
        if config.weighting is not None and self.mean_weights is not None:
            counts = self.tasks.batch.shots[features]
            weights = feature_weights(shots, counts, self.mean_weights, config.weighting)
        return draw_episode(batch, states, shots, generator, config.max_targets, weights)


def draw_episode(
    batch: FeatureBatch,
    states: RowStates,
    shots: Tensor,
    generator: torch.Generator,
    max_targets: int | None = None,
    weights: Tensor | None = None,
) -> Episode:
    """Reveal ``shots`` (features,) random observations of each feature; the others are targets.

    A feature with fewer observations reveals all of them. A feature has at most ``max_targets`` targets.
    """
    cells = batch.cells
    rank, revealed_count = random_ranks(cells, generator, batch.groups), shots[cells.lines]
    revealed = rank < revealed_count
    is_target = ~revealed if max_targets is None else ~revealed & (rank < revealed_count + max_targets)
    return Episode(batch.observing(cells.keep(revealed)), cells.keep(is_target), states, weights)


# -- losses -------------------------------------------------------------------------------------------


def episode_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Tensor:
    """Compute the weighted negative log-likelihood of the targets; without weights the paper's meta-loss."""
    losses = predict_targets(adapter, likelihood, episode).nll(episode.targets.values)
    return (losses * _target_weights(episode)).sum()


def shared_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode, seed: int) -> Tensor:
    """Compute the part of this process in ``episode_loss``, which is the sum over all processes.

    Every process has the whole episode and computes the heads of its share of the features. ``seed``
    determines dropout, which does not depend on the number of processes.
    """
    features = torch.arange(len(episode.context))[local_share(len(episode.context))]
    if len(features) == 0:
        return torch.zeros((), requires_grad=True)
    targets, first = episode.targets.take(features), int(episode.targets.indptr[features[0]])
    part = Episode(episode.context.take(features), targets, episode.states)
    with batch_share(int(features[0]), len(episode.context), seed):
        losses = predict_targets(adapter, likelihood, part).nll(targets.values)
    return (losses * _target_weights(episode)[first : first + len(losses)]).sum()


def _target_weights(episode: Episode) -> Tensor:
    """Return the weights of the targets in the loss, with sum 1: (n,)."""
    targets = episode.targets
    if targets.weights is not None:
        shares = targets.weights
        if episode.weights is not None:
            totals = targets.weighted_counts.clamp(min=LEAST_WEIGHT)
            shares = shares * (episode.weights / totals)[targets.lines]
        return shares / shares.sum().clamp(min=LEAST_WEIGHT)
    if episode.weights is None:
        return torch.full((len(targets.index),), 1 / len(targets.index))
    return (episode.weights / episode.weights.sum() / targets.counts.clamp(min=1))[targets.lines]


def predict_targets(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Predictive:
    """Predict the targets with heads computed from the contexts: (n,)."""
    if adapter.refines:
        episode = episode.compact()  # refine only the rows that occur
    states = adapter.refine(episode.states)
    heads = adapter.adapt(episode.context, states)
    return predict_cells(heads, states, episode.targets, episode.context.kinds, likelihood)


# -- random numbers of shots, features and observations -----------------------------------------------


def draw_shots(
    batch: FeatureBatch,
    most: int,
    generator: torch.Generator,
    how: Literal["uniform", "log"] = "uniform",
) -> Tensor:
    """Draw the shots of each feature from {0..most}, leaving at least one target: (features,).

    The distribution is uniform as in the paper, or uniform in log(1 + shots), which prefers few shots.
    """
    if how == "uniform":
        shots = torch.randint(most + 1, (len(batch),), generator=generator)
    else:
        share = torch.rand(len(batch), generator=generator)
        shots = (torch.exp(share * math.log(most + 2)) - 1).long().clamp(max=most)
    return torch.minimum(shots, (batch.shots - 1).clamp(min=0))


def draw_features(counts: Tensor, number: int, power: float, generator: torch.Generator) -> Tensor:
    """Draw the positions of ``number`` features in proportion to counts^power, in random order: (number,).

    The sample is stratified: one feature from each of ``number`` equal parts of the total.
    """
    ends = (counts.double() ** power).cumsum(0)
    points = torch.arange(number) + torch.rand(number, generator=generator, dtype=torch.float64)
    drawn = torch.searchsorted(ends, points / number * ends[-1], right=True).clamp(max=len(counts) - 1)
    return drawn[torch.randperm(number, generator=generator)]


def feature_weights(shots: Tensor, counts: Tensor, means: Tensor, power: float) -> Tensor:
    """Compute the weights in the loss of features with ``counts`` observations at ``shots``: (features,).

    The expected weight of a feature over all draws is counts^p, divided by its mean over all features
    (``means``, see ``mean_weights``). The exponent p falls from 1 at zero shots, where all targets have the
    same weight, towards ``power``: with less uneven weights more features contribute. ``draw_features``
    accounts for the factor counts^power, these weights for the rest.
    """
    return counts.float() ** (_exponents(shots, power) - power) / means[shots]


def mean_weights(feature_counts: Tensor, most: int, power: float) -> Tensor:
    """Compute the mean of counts^p over ``feature_counts``, for shots from 0 to ``most``: (most + 1,)."""
    # Counts repeat: compute each power once.
    counts, features = torch.unique(feature_counts, return_counts=True)
    exponents = _exponents(torch.arange(most + 1), power)
    means = [(counts.float() ** exponent * features).sum() / len(feature_counts) for exponent in exponents]
    return torch.stack(means)


def _exponents(shots: Tensor, power: float) -> Tensor:
    """Return the exponent p of ``feature_weights`` at ``shots``."""
    return power + (1 - power) * (1 + shots.float()).rsqrt()


def random_ranks(cells: Cells, generator: torch.Generator, groups: Tensor | None = None) -> Tensor:
    """Return the rank of each observation in a random order of its line: (n,).

    Lines with equal ``groups`` (lines,), the levels of one category, have the same order of their rows.
    """
    keys = torch.rand(len(cells.index), generator=generator, dtype=torch.float64)
    if groups is not None:
        group, features = features_of(groups, len(cells))
        first = torch.full((features,), len(cells)).scatter_reduce(0, group, torch.arange(len(cells)), "amin")
        within = torch.arange(len(keys)) - cells.indptr[cells.lines]
        keys = keys[cells.indptr[first[group]][cells.lines] + within]
    return ranks_in_line(cells, keys)


def shuffle_observations(cells: Cells, generator: torch.Generator) -> Cells:
    """Return the observations of each line in random order."""
    order = torch.empty(len(cells.index), dtype=torch.int64)
    order[random_ranks(cells, generator) + cells.indptr[cells.lines]] = torch.arange(len(order))
    return cells.at(cells.indptr, order)


def sample_shuffled(cells: Cells, lines: Tensor, most: int, generator: torch.Generator) -> Cells:
    """Draw at most ``most`` observations of each of ``lines`` from cells of ``shuffle_observations``.

    They are consecutive from a random start, cyclically, so the cost does not depend on the length of lines.
    """
    counts = cells.counts[lines]
    first = (torch.rand(len(lines), generator=generator, dtype=torch.float64) * counts).long()
    indptr = offsets(counts.clamp(max=most))
    position = ranges(first, indptr.diff())
    line = torch.repeat_interleave(indptr.diff())
    return cells.at(indptr, cells.indptr[lines][line] + position % counts[line])
