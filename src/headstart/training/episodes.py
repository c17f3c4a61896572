"""Draw episodes: features treated as new, part of their observations revealed, the rest to predict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.backbones.base import Backbone
from headstart.core.likelihood import Likelihood
from headstart.core.networks import batch_share
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import FeatureBatch, Knowledge, RowStates
from headstart.distributed import process_group
from headstart.linalg.ragged import places
from headstart.linalg.row_sharded import draw_uniform_at, select_local
from headstart.table.cells import Cells, index_dtype, offsets, ranges

if TYPE_CHECKING:
    from headstart.training.meta_training import MetaTrainingConfig


def random_ranks(cells: Cells, generator: torch.Generator) -> Tensor:
    """The place of each observation in a random order of its line: (n,). No value is looked at."""
    lines = cells.lines
    keys = torch.rand(len(lines), generator=generator, dtype=torch.float64)
    order = torch.argsort(lines + keys)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - cells.indptr[lines]
    return rank


def shuffle_observations(cells: Cells, generator: torch.Generator) -> Cells:
    """The same observations, those of each line in a random order."""
    order = torch.empty(len(cells.index), dtype=torch.int64)
    order[random_ranks(cells, generator) + cells.indptr[cells.lines]] = torch.arange(len(order))
    return cells.at(cells.indptr, order)


def random_part(cells: Cells, lines: Tensor, most: int, generator: torch.Generator) -> Cells:
    """Draw at most ``most`` observations of each of ``lines`` from cells made by ``shuffle_observations``.

    They follow each other from a random place on, the first after the last: so a line of any length costs
    no more than what is taken of it.
    """
    counts = cells.counts[lines]
    first = (torch.rand(len(lines), generator=generator, dtype=torch.float64) * counts).long()
    taken = offsets(counts.clamp(max=most))
    place = ranges(first, taken.diff())
    owner = torch.repeat_interleave(taken.diff())
    return cells.at(taken, cells.indptr[lines][owner] + place % counts[owner])


def draw_shots(
    batch: FeatureBatch,
    most: int,
    generator: torch.Generator,
    how: Literal["uniform", "log"] = "uniform",
) -> Tensor:
    """Shots from {0..most} for each feature, leaving it at least one target: (features,).

    Uniform as in the paper, or uniform in log(1 + shots), so that many shots do not crowd out few.
    """
    if how == "uniform":
        shots = torch.randint(most + 1, (len(batch),), generator=generator)
    else:
        share = torch.rand(len(batch), generator=generator)
        shots = (torch.exp(share * math.log(most + 2)) - 1).long().clamp(max=most)
    return torch.minimum(shots, (batch.shots - 1).clamp(min=0))


def draw_features(counts: Tensor, number: int, power: float, generator: torch.Generator) -> Tensor:
    """The places of so many features, drawn in proportion to counts^power, in a random order: (number,).

    One is drawn from each of ``number`` equal parts of the whole, so that all kinds of features occur.
    """
    ends = (counts.double() ** power).cumsum(0)
    points = torch.arange(number) + torch.rand(number, generator=generator, dtype=torch.float64)
    drawn = torch.searchsorted(ends, points / number * ends[-1], right=True).clamp(max=len(counts) - 1)
    return drawn[torch.randperm(number, generator=generator)]


def feature_weights(shots: Tensor, counts: Tensor, usual: Tensor, power: float) -> Tensor:
    """How much a feature of ``counts`` observations counts in an episode of ``shots``: (features,).

    All draws of a feature together should count counts^p, relative to its mean over all features
    (``usual_weights``). p falls from 1 at no shots, where a feature's popularity is all that says how much
    its targets weigh, towards ``power``: less uneven weights make more features teach. ``draw_features``
    gives a part of it, counts^power, and this is the rest.
    """
    return counts.float() ** (_exponents(shots, power) - power) / usual[shots]


def usual_weights(every: Tensor, most: int, power: float) -> Tensor:
    """The mean of counts^p over ``every`` count there is, by shots up to ``most``: (most + 1,).

    Counts repeat: each power is computed once for the features that share it.
    """
    counts, features = torch.unique(every, return_counts=True)
    exponents = _exponents(torch.arange(most + 1), power)
    means = [(counts.float() ** each * features).sum() / len(every) for each in exponents]
    return torch.stack(means)


def _exponents(shots: Tensor, power: float) -> Tensor:
    return power + (1 - power) * (1 + shots.float()).rsqrt()


def gather_states(states: RowStates) -> RowStates:
    """The states of the rows of all processes."""
    return (
        states
        if process_group().is_single
        else states.each(lambda part: process_group().all_gather(part.contiguous()))
    )


def gather_cells(cells: Cells, rows: int) -> Cells:
    """The observations of all processes, of ``cells`` with one line per feature; this one has so many rows.

    Observations of a feature are in the order of rows, as they would be in one process.
    """
    if process_group().is_single:
        return cells
    start, whole = process_group().span(rows)
    lines = process_group().all_gather(cells.lines)
    order = torch.argsort(lines, stable=True)
    moved = cells.index.to(index_dtype(whole)) + start
    index, values = process_group().all_gather(moved)[order], process_group().all_gather(cells.values)[order]
    return Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, whole)


def gather_feature_sample(cells: Cells, rows: int, most: int, generator: torch.Generator) -> Cells:
    """At most so many observations of each feature, drawn at random as one process would from all.

    Every process draws among its own and sends only what may be among the drawn ones of all.
    """
    start, whole = process_group().span(rows)
    counts = process_group().all_gather(cells.counts[None])  # (processes, features)
    before, total = counts[: process_group().rank].sum(0), counts.sum(0)
    mine = ranges(offsets(total)[:-1] + before, cells.counts)
    keys = draw_uniform_at(mine, int(total.sum()), generator)
    kept = _first(cells.lines, keys, cells, most)
    lines, keys = process_group().all_gather(cells.lines[kept]), process_group().all_gather(keys[kept])
    moved = cells.index[kept].to(index_dtype(whole)) + start
    index, values = process_group().all_gather(moved), process_group().all_gather(cells.values[kept])
    order = torch.argsort(lines, stable=True)
    lines, keys, index, values = lines[order], keys[order], index[order], values[order]
    every = Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, whole)
    return every.keep(_first(lines, keys, every, most))


def _first(lines: Tensor, keys: Tensor, cells: Cells, most: int) -> Tensor:
    """Which observations have one of the ``most`` smallest keys of their line: (n,)."""
    order = torch.argsort(lines + keys)
    rank = torch.empty_like(order)
    rank[order] = places(cells)
    return rank < most


MOST_STATES = 2**28  # numbers kept of all folds: 1 GiB

MOST_FOLDS = 12

# Of a feature, where not all can be kept: enough for its head, and for episodes to draw from.
_LEAST_OBSERVATIONS = 512


@dataclass(frozen=True)
class Tasks:
    """Features treated as new. Each belongs to a fold, whose row states were computed without it."""

    batch: FeatureBatch  # its cells point at the states of each feature's own fold
    fold: Tensor  # (features,): which of ``states`` goes with each
    states: tuple[RowStates, ...]

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, features: Tensor) -> Tasks:
        """Return these features, in this order."""
        return Tasks(self.batch.take(features), self.fold[features], self.states)

    def hold_out(self, share: float, seed: int) -> tuple[Tasks, Tasks]:
        """Part the features into those that teach and those that validate, at least one of each."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        kept = min(max(1, round(share * len(self))), len(self) - 1)
        return self.take(order[kept:]), self.take(order[:kept])

    def split(self) -> list[tuple[FeatureBatch, RowStates]]:
        """The features of each fold that has any, with its states."""
        members = [torch.nonzero(self.fold == fold)[:, 0] for fold in range(len(self.states))]
        return [self.together(features) for features in members if len(features)]

    def together(self, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        """These features, which must be of one fold, with its states."""
        return self._with_states(self.batch.take(features), features)

    def shuffled(self, seed: int) -> Tasks:
        """The same features, the observations of each in a random order: see ``sampled``."""
        cells = shuffle_observations(self.batch.cells, torch.Generator().manual_seed(seed))
        return replace(self, batch=self.batch.observing(cells))

    def sampled(
        self, features: Tensor, most: int, generator: torch.Generator
    ) -> tuple[FeatureBatch, RowStates]:
        """Return ``together`` with at most ``most`` observations of each feature."""
        cells = random_part(self.batch.cells, features, most, generator)
        return self._with_states(self.batch.take(features, cells), features)

    def _with_states(self, batch: FeatureBatch, features: Tensor) -> tuple[FeatureBatch, RowStates]:
        states = self.states[int(self.fold[features[0]])]
        return batch.observing(replace(batch.cells, width=len(states))), states


def disjoint_tasks(batch: FeatureBatch, knowledge: Knowledge) -> Tasks:
    """Features the backbone was not trained on, as the paper has it: one fold, its states as they are.

    Of several processes each gets the states of the rows that observed these features.
    """
    if not process_group().is_single:
        cells = gather_cells(batch.cells, len(knowledge.states))
        rows, index = torch.unique(cells.index, return_inverse=True)
        own = select_local(rows, len(knowledge.states))[1]
        states = gather_states(knowledge.states.take(own))
        batch = batch.observing(replace(cells, index=index, width=len(rows)))
        return Tasks(batch, torch.zeros(len(batch), dtype=torch.int64), (states,))
    return Tasks(batch, torch.zeros(len(batch), dtype=torch.int64), (knowledge.states,))


def sample_features(knowledge: Knowledge, *, seed: int) -> Tensor | None:
    """Which of the backbone's features to meta-train on, ascending; None: all of them.

    All of them if the states of all rows can be kept for every fold. Otherwise as many, drawn at random, as
    there is memory for the states of the rows that observed them: the rest could teach little more.
    """
    if MOST_FOLDS * process_group().span(len(knowledge.states))[1] <= _most_states(knowledge):
        return None
    counts = knowledge.table_shots.clamp(max=_most_observations(knowledge))
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed))
    fitting = int((counts[order].double().cumsum(0) <= _most_states(knowledge)).sum())
    return order[: max(MOST_FOLDS, fitting)].sort().values


def _most_states(knowledge: Knowledge) -> int:
    """The states of how many rows are kept of all folds together."""
    own = knowledge.states
    return MOST_STATES // max(1, 2 * own.code.shape[1] + 2 * own.activation.shape[1])


def _most_observations(knowledge: Knowledge) -> int:
    """How many observations of a feature are kept where features are sampled."""
    return max(_LEAST_OBSERVATIONS, _most_states(knowledge) // max(1, len(knowledge.kinds)))


def cross_fitted_tasks(batch: FeatureBatch, backbone: Backbone, knowledge: Knowledge, *, seed: int) -> Tasks:
    """The backbone's own features, in folds; each fold's rows are encoded with its features masked.

    So backbone and adapter both learn from all features instead of sharing them out. ``batch`` are all
    features of the backbone or, with their positions, those that were sampled.
    """
    generator = torch.Generator().manual_seed(seed)
    count = min(MOST_FOLDS, len(batch))
    order = torch.randperm(len(batch), generator=generator)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(batch)) % count
    if batch.positions is None:
        cells = gather_cells(batch.cells, len(knowledge.states))
        states = tuple(gather_states(backbone.states(knowledge.cells, fold == each)) for each in range(count))
        return Tasks(replace(batch, cells=cells, positions=torch.arange(len(batch))), fold, states)
    most = _most_observations(knowledge)
    if process_group().is_single:
        cells = batch.cells.keep(random_ranks(batch.cells, generator) < most)
    else:
        cells = gather_feature_sample(batch.cells, len(knowledge.states), most, generator)
    index, found, of_cell = cells.index.clone(), [], fold[cells.lines]
    for each in range(count):
        own = of_cell == each
        rows, places = torch.unique(cells.index[own], return_inverse=True)
        hidden = torch.zeros(len(knowledge.kinds), dtype=torch.bool)
        hidden[batch.positions[fold == each]] = True
        here = rows if process_group().is_single else select_local(rows, len(knowledge.states))[1]
        found.append(gather_states(backbone.states(knowledge.cells.take(here), hidden)))
        index[own] = places.to(index.dtype)
    return Tasks(batch.observing(replace(cells, index=index)), fold, tuple(found))


@dataclass(frozen=True)
class Episode:
    """A batch of features with their contexts, the targets kept back (one line per feature), and the rows."""

    context: FeatureBatch
    targets: Cells
    states: RowStates  # of rows that know nothing of these features
    weights: Tensor | None = None  # (features,): how much each counts; None: as much as it has targets

    def compact(self) -> Episode:
        """The same episode, knowing only the rows that occur in it."""
        every = torch.cat([self.context.cells.index, self.targets.index])
        rows, places = torch.unique(every, return_inverse=True)
        near, far = places.split([len(self.context.cells.index), len(self.targets.index)])

        def renamed(cells: Cells, index: Tensor) -> Cells:
            return replace(cells, index=index, width=len(rows))

        context = self.context.observing(renamed(self.context.cells, near))
        return Episode(context, renamed(self.targets, far), self.states.take(rows), self.weights)


def draw_episode(
    batch: FeatureBatch,
    states: RowStates,
    shots: Tensor,
    generator: torch.Generator,
    max_targets: int | None = None,
    weights: Tensor | None = None,
) -> Episode:
    """Reveal ``shots`` (features,) of each feature's observations, chosen at random.

    One argsort of (feature, random key); a feature with fewer observations reveals all of them. Of
    the rest at most ``max_targets`` are targets.
    """
    cells = batch.cells
    rank, first = random_ranks(cells, generator), shots[cells.lines]
    revealed = rank < first
    asked = ~revealed if max_targets is None else ~revealed & (rank < first + max_targets)
    return Episode(batch.observing(cells.keep(revealed)), cells.keep(asked), states, weights)


def predict_targets(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Predictive:
    """What the adapter's heads say of the targets: (n,)."""
    if adapter.refines:
        episode = episode.compact()  # only rows that occur are worth refining
    states = adapter.refine(episode.states)
    heads = adapter.adapt(episode.context, states)
    return predict_cells(heads, states, episode.targets, episode.context.kinds, likelihood)


def shared_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode, seed: int) -> Tensor:
    """This process's share of ``episode_loss``: the losses of all processes add up to it.

    Every process has the whole episode and makes the heads of some of its features. ``seed`` is that of
    dropout, which is the same for any number of processes.
    """
    features = torch.arange(len(episode.context)).tensor_split(process_group().size)[process_group().rank]
    if len(features) == 0:
        return torch.zeros((), requires_grad=True)
    targets = episode.targets.take(features)
    if episode.weights is None:
        share = torch.full((len(features),), 1 / len(episode.targets.index))
    else:
        share = episode.weights[features] / episode.weights.sum() / targets.counts.clamp(min=1)
    part = Episode(episode.context.take(features), targets, episode.states)
    with batch_share(int(features[0]), len(episode.context), seed):
        losses = predict_targets(adapter, likelihood, part).nll(targets.values)
    return (losses * share[targets.lines]).sum()


def episode_loss(adapter: Adapter, likelihood: Likelihood, episode: Episode) -> Tensor:
    """Negative log-likelihood of the targets; the paper's meta-loss where features carry no weights."""
    targets = episode.targets
    losses = predict_targets(adapter, likelihood, episode).nll(targets.values)
    if episode.weights is None:
        return losses.mean()
    share = (episode.weights / episode.weights.sum() / targets.counts.clamp(min=1))[targets.lines]
    return (losses * share).sum()


class EpisodeDrawer:
    """Draws the episodes of each epoch from the features that teach.

    With ``weighting`` features are drawn in proportion to what they should count, as far as it is the same
    at all numbers of shots: a batch of features that all count teaches more than one of which most count
    little. Without it an epoch goes over the features in a random order.
    """

    def __init__(self, tasks: Tasks, config: MetaTrainingConfig, *, seed: int) -> None:
        self.config = config
        self.teaching = torch.nonzero(tasks.batch.shots >= 1)[:, 0]  # the others have no target
        # What is drawn of a feature must not cost what all of its observations cost.
        self.most = None if config.max_targets is None else config.max_shots + config.max_targets
        self.tasks = tasks if self.most is None else tasks.shuffled(seed)
        self.usual = None
        if config.weighting is not None and len(self.teaching):
            counts = tasks.batch.shots[self.teaching]
            self.usual = usual_weights(counts, config.max_shots, config.weighting)

    def epoch(self, generator: torch.Generator) -> Iterator[Episode]:
        """The episodes of one epoch."""
        for features in self._batches(self._order(generator), generator):
            if len(features):
                yield self._episode(features, generator)

    def _order(self, generator: torch.Generator) -> Tensor:
        """The features of an epoch."""
        weighting, most = self.config.weighting, self.config.epoch_features
        if weighting is None or len(self.teaching) == 0:
            return self.teaching[torch.randperm(len(self.teaching), generator=generator)][:most]
        number = min(len(self.teaching), most or len(self.teaching))
        counts = self.tasks.batch.shots[self.teaching]
        return self.teaching[draw_features(counts, number, weighting, generator)]

    def _batches(self, order: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Cut an order of features into batches, each within one fold, the folds in turn at random."""
        if len(self.tasks.states) == 1:
            yield from self.config.batches(order)
            return
        size = self.config.batch_for(len(order))
        cut = [
            batch
            for fold in range(len(self.tasks.states))
            for batch in torch.split(order[self.tasks.fold[order] == fold], size)
        ]
        for turn in torch.randperm(len(cut), generator=generator).tolist():
            yield cut[turn]

    def _episode(self, features: Tensor, generator: torch.Generator) -> Episode:
        config = self.config
        if self.most is None:
            batch, states = self.tasks.together(features)
        else:
            batch, states = self.tasks.sampled(features, self.most, generator)
        shots = draw_shots(batch, config.max_shots, generator, config.shots)
        weights = None
        if config.weighting is not None and self.usual is not None:
            counts = self.tasks.batch.shots[features]
            weights = feature_weights(shots, counts, self.usual, config.weighting)
        return draw_episode(batch, states, shots, generator, config.max_targets, weights)
