"""Score adapters on the tests of new features and new rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.core.likelihood import Likelihood
from headstart.core.neighbours import LocalPart, LocalStrengths, local_part_of, neighbours_of
from headstart.core.predictive import Predictive, predict_grid
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.core.value_references import RowColumnMeans
from headstart.errors import InputError
from headstart.evaluate.kshot import NEW_CELL_SHOTS, KShotTest, RowTest, Targets, new_cell_targets
from headstart.evaluate.metrics import Score, score
from headstart.evaluate.rankings import is_relevant, score_lists
from headstart.evaluate.references import Reference
from headstart.evaluate.results import Run, Timing
from headstart.evaluate.splits import FeatureSplit
from headstart.table import Cells, Table
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL, Calibration
from headstart.training.known_neighbours import fit_known_weights
from headstart.training.recipe import TrainedAdapter, TrainedParts
from headstart.training.table_inputs import feature_batch, modelled_table

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_FEATURES_AT_ONCE = 1024


def _no_local_part(heads: Heads, context: FeatureBatch) -> None:
    """Return no local part of new features."""


@dataclass(frozen=True)
class NewFeatureModel:
    """A model of new features: functions of their contexts and heads, and the rows to predict.

    Attributes
    ----------
    adapt : callable
        Returns the heads of features, given their contexts.
    states : RowStates
        The states of the rows, refined for these heads.
    likelihood : Likelihood
        The likelihood of the backbone.
    local : callable
        Returns the local part of features, given heads and contexts; None: they have none.
    residuals : csr_array or None
        The residuals of the rows, which local parts read: (rows, known features).
    rank : callable or None
        Returns a function that scores all rows for a slice of features, as ``Grid.rows_for`` does, given
        heads, contexts and local part; None: rankings are not scored.
    """

    adapt: Callable[[FeatureBatch], Heads]
    states: RowStates
    likelihood: Likelihood
    local: Callable[[Heads, FeatureBatch], LocalPart | None] = _no_local_part
    residuals: csr_array | None = None
    rank: Callable[[Heads, FeatureBatch, LocalPart | None], Callable[[slice], Tensor]] | None = None


class Grid(NamedTuple):
    """Heads and rows, whose cells are ranked by their predicted means."""

    heads: Heads
    states: RowStates
    kinds: Tensor  # (heads,)
    likelihood: Likelihood
    local: LocalPart | None = None  # of the heads; None: they have none
    residuals: csr_array | None = None  # (rows, known features): of the rows; None: they have none

    def rows_for(self, part: slice) -> Tensor:
        """Score all rows for a slice of the heads: (heads of the slice, rows)."""
        local = None if self.local is None else self.local.take(np.arange(self.local.size)[part])
        grid = self._replace(heads=self.heads.take(part), kinds=self.kinds[part], local=local)
        return grid.means().T

    def features_for(self, part: slice) -> Tensor:
        """Score all heads for a slice of the rows: (rows of the slice, heads)."""
        residuals = None if self.residuals is None else self.residuals[part]
        return self._replace(states=self.states.take(part), residuals=residuals).means()

    @torch.no_grad()
    def means(self) -> Tensor:
        """Return the predicted means of all cells, moved by the local part: (rows, heads)."""
        predictive = predict_grid(self.heads, self.states, self.kinds, self.likelihood)
        return (predictive if self.local is None else self.local.shift(predictive, self.residuals)).mean


def score_adapter(
    method: str,
    adapter: Adapter,
    knowledge: Knowledge,
    test: KShotTest,
    calibration: Calibration | None,
    times: Mapping[int, Timing],
    split: int = 0,
    *,
    ranking: bool = False,
    strengths: LocalStrengths | None = None,
) -> list[Run]:
    """Score ``adapter`` under the name ``method`` at every number of shots of ``test``.

    ``times`` has the time per head by shots. Without a ``calibration`` intervals are not scored. With
    ``ranking``, the ranking of all rows for each feature is scored, too. ``strengths`` scale the local
    part; None: predictions have none.
    """
    with torch.no_grad():
        states = adapter.refine(knowledge.states)
    likelihood = knowledge.likelihood
    residuals = None if strengths is None else neighbours_of(knowledge).residuals

    def local(heads: Heads, context: FeatureBatch) -> LocalPart | None:
        return None if strengths is None else local_part_of(knowledge, heads, context, states, strengths)

    def rank(heads: Heads, context: FeatureBatch, part: LocalPart | None) -> Callable[[slice], Tensor]:
        return Grid(heads, states, context.kinds, likelihood, part, residuals).rows_for

    adapt = partial(heads_of, adapter, states=states)
    model = NewFeatureModel(adapt, states, likelihood, local, residuals, rank if ranking else None)
    return score_new_features(method, model, test, calibration, times, split)


def score_new_features(
    method: str,
    model: NewFeatureModel,
    test: KShotTest,
    calibration: Calibration | None,
    times: Mapping[int, Timing],
    split: int = 0,
) -> list[Run]:
    """Score ``model`` under the name ``method``; the other parameters are those of ``score_adapter``."""
    runs = []
    for shots in test.shots:
        context = test.context(shots)
        heads = model.adapt(context)
        predictive, part = test.predict(heads, model.states, model.likelihood), model.local(heads, context)
        if part is not None and model.residuals is not None:
            predictive = part.shift_cells(predictive, test.targets, model.residuals)
        scores = score_targets(test, predictive, context.shots, calibration)
        if model.rank is not None:
            scores |= score_lists(model.rank(heads, context, part), test.lists())
        ms = round(times[shots].ms_per_feature, 6) if shots in times else None
        runs += runs_of(scores, split, method, shots, ms_per_feature=ms)
    return runs


def score_targets(
    test: Targets, predictive: Predictive, shots: Tensor, calibration: Calibration | None
) -> dict[str, Score]:
    """Compute all metrics of predictions; ``shots`` (features,) are the shots of the heads."""
    kinds = test.kinds.numpy()
    mean, std, distance = predictive.mean, predictive.std, None
    if calibration is not None:
        std = calibration.factor(shots, test.modelled)[test.lines, USUAL_LEVEL] * std
        corrected = calibration.probability(mean, predictive.std, shots[test.lines])
        distance = ((test.targets.values - mean).abs() / std).double().numpy()
        mean = torch.where(test.kinds == KindType.BINARY, corrected, mean)
    ranking = predictive.mean.double().numpy()
    mean_of_values, lines = test.to_values(mean, std)[0], test.lines.numpy()
    return score(test.truth, mean_of_values, lines, kinds, distance, ranking, test.weights, test.answers)


def score_reference(
    method: str, reference: Reference, test: KShotTest, rows: HeldOutRows | None, split: int = 0
) -> list[Run]:
    """Score the rankings of a reference method on new features and, unless ``rows`` is None, new rows."""
    runs = []
    for shots in test.shots:
        scored = reference.rank_rows(relevant_cells(test.context(shots)))
        runs += runs_of(score_lists(partial(_take, scored), test.lists()), split, method, shots)
    if rows is None:
        return runs
    for shots in rows.rows.shots:
        context, kinds = rows.rows.context(shots), rows.all_known.kinds
        context = context.keep(is_relevant(context.values, kinds[context.index]))
        scored = reference.rank_features(context)
        runs += runs_of(score_lists(partial(_take, scored), rows.rows.lists()), split, method, None, shots)
    return runs


def score_value_reference(
    method: str, reference: RowColumnMeans, test: KShotTest, rows: HeldOutRows | None, split: int = 0
) -> list[Run]:
    """Score the values that a reference predicts for new features and, unless ``rows`` is None, new rows."""
    runs = []
    for shots in test.shots:
        features = reference.fold_features(test.context(shots).cells)
        scores = _score_products(test, reference.rows, features, reference.std)
        runs += runs_of(scores, split, method, shots)
    if rows is None:
        return runs
    known = reference.features[rows.rows.features]
    for shots in rows.rows.shots:
        new_rows = reference.fold_rows(rows.rows.context(shots))
        runs += runs_of(
            _score_products(rows.rows, new_rows, known, reference.std), split, method, None, shots
        )
    if rows.both is not None:
        features = reference.fold_features(rows.new.context(NEW_CELL_SHOTS).cells)
        new_rows = reference.fold_rows(rows.rows.context(NEW_CELL_SHOTS))
        scores = _score_products(rows.both, new_rows, features, reference.std)
        runs += runs_of(scores, split, method, NEW_CELL_SHOTS, NEW_CELL_SHOTS)
    return runs


def _score_products(test: Targets, rows: Tensor, features: Tensor, std: float) -> dict[str, Score]:
    """Score the inner products of the vectors of rows and of tested features as predictions of targets."""
    mean = (rows[test.targets.index] * features[test.lines]).sum(1)
    values, lines = test.values_within_limits(mean, std), test.lines.numpy()
    return score(test.truth, values, lines, test.kinds.numpy(), ranking=mean.numpy(), weights=test.weights)


def relevant_cells(batch: FeatureBatch) -> Cells:
    """Return the relevant observations of features, one line per feature."""
    cells = batch.cells
    return cells.keep(is_relevant(cells.values, batch.kinds[cells.lines]))


def _take(scores: Tensor, part: slice) -> Tensor:
    return scores[part]


def runs_of(
    scores: Mapping[str, Score],
    split: int,
    method: str,
    shots: int | None,
    row_shots: int | None = None,
    ms_per_feature: float | None = None,
) -> list[Run]:
    """Return one run per metric."""
    return [
        Run(
            split=split,
            method=method,
            shots=shots,
            row_shots=row_shots,
            metric=metric,
            value=score.value,
            features=score.features,
            targets=score.targets,
            ms_per_feature=ms_per_feature,
        )
        for metric, score in scores.items()
    ]


@torch.no_grad()
def heads_of(adapter: Adapter, context: FeatureBatch, states: RowStates) -> Heads:
    """Adapt any number of features in batches; ``states`` are refined."""
    parts = torch.split(torch.arange(len(context)), _FEATURES_AT_ONCE)
    return Heads.concatenate([adapter.adapt(context.take(part), states) for part in parts])


@dataclass(frozen=True)
class HeldOutRows:
    """The tests of held-out rows in one split, for models with one binary link."""

    all_known: FeatureBatch  # the known features, with all their training observations
    rows: RowTest  # the held-out rows at known features
    new: KShotTest  # the new features
    both: Targets | None  # the cells of held-out rows and new features, if there are any

    @property
    def known(self) -> FeatureBatch:
        """The known features with a target, with all their training observations."""
        return self.all_known.take(self.rows.features)

    @classmethod
    def of(
        cls,
        table: Table,
        held_out: Table,
        split: FeatureSplit,
        new: KShotTest,
        link: str,
        row_shots: tuple[int, ...],
        seed: int,
    ) -> HeldOutRows | None:
        """Build the tests; return None if no held-out row has enough observations of known features.

        ``table`` has the training rows and ``held_out`` the held-out rows; both have all features,
        with the same kinds.
        """
        modelled = modelled_table(held_out, link)
        known_features = modelled.with_features(split.train)
        if not (np.bincount(known_features.row_index) > max(row_shots)).any():
            return None
        rows = RowTest(known_features, held_out.kinds.take(split.train), row_shots, seed)
        batch = feature_batch(modelled_table(table, link).with_features(split.train))
        known = replace(batch, known=torch.arange(len(batch)))
        new_features, new_kinds = (
            modelled.with_features(split.meta_test),
            held_out.kinds.take(split.meta_test),
        )
        return cls(known, rows, new, new_cell_targets(new_features, new_kinds, rows, new))


@torch.no_grad()
def score_rows(
    method: str, trained: TrainedParts, test: HeldOutRows, split: int = 0, *, ranking: bool = False
) -> list[Run]:
    """Score ``method`` on new rows at every number of observations, and on new features at new rows.

    With ``ranking``, the ranking of all known features for each row is scored, too.
    """
    part, knowledge, rows = trained.adapters[method], trained.knowledge, test.rows
    adapter, calibration, likelihood = part.adapter, part.calibration, knowledge.likelihood
    trained_states = adapter.refine(knowledge.states)

    def states(shots: int) -> tuple[RowStates, csr_array | None]:
        """Return the states of rows and, if there are local parts, their residuals."""
        context = rows.context(shots)
        now = trained.backbone.states(context)
        residuals = None if part.local is None else neighbours_of(knowledge).residuals_at(now, context)
        return adapter.refine(now), residuals

    known = test.all_known if ranking else test.known
    all_heads = known_heads(adapter, knowledge, known, trained_states)
    heads = all_heads.take(rows.features) if ranking else all_heads
    positions = torch.arange(len(known)) if ranking else rows.features
    all_local = _known_local_part(trained, part, all_heads, positions, test.all_known)
    local = all_local.take(rows.features.numpy()) if ranking and all_local else all_local
    runs = []
    for shots in rows.shots:
        now, residuals = states(shots)
        predictive = rows.predict(heads, now, likelihood)
        if local is not None and residuals is not None:
            predictive = local.shift_cells(predictive, rows.targets, residuals)
        scores = score_targets(rows, predictive, test.known.shots, calibration)
        if ranking:
            grid = Grid(all_heads, now, known.kinds, likelihood, all_local, residuals)
            scores |= score_lists(grid.features_for, rows.lists())
        runs += runs_of(scores, split, method, None, shots)
    if test.both is not None:
        context = test.new.context(NEW_CELL_SHOTS)
        new_heads = heads_of(adapter, context, trained_states)
        now, residuals = states(NEW_CELL_SHOTS)
        predictive = test.both.predict(new_heads, now, likelihood)
        if part.local is not None and residuals is not None:
            new_part = local_part_of(knowledge, new_heads, context, trained_states, part.local)
            predictive = new_part.shift_cells(predictive, test.both.targets, residuals)
        scores = score_targets(test.both, predictive, context.shots, calibration)
        runs += runs_of(scores, split, method, NEW_CELL_SHOTS, NEW_CELL_SHOTS)
    return runs


def _known_local_part(
    trained: TrainedParts, part: TrainedAdapter, heads: Heads, features: Tensor, known: FeatureBatch
) -> LocalPart | None:
    """Return the local part of known ``features`` (positions) with ``heads``; None if they have none."""
    if part.local is None or not any(part.local.known):
        return None
    parts = trained.backbone, part.adapter, trained.knowledge, heads, features, known.groups
    weights = neighbours_of(trained.knowledge).stack(fit_known_weights(*parts, seed=0))
    count = len(features)
    return LocalPart(count, np.arange(count), weights, np.ones(count, bool), part.local)


def known_heads(adapter: Adapter, knowledge: Knowledge, known: FeatureBatch, states: RowStates) -> Heads:
    """Return the heads of the backbone's features in a fitted model.

    An adapter that ``makes_known_heads`` makes them from all observations of a feature; with any other
    adapter a model keeps the backbone's heads. ``states`` are the refined states of the training rows.
    """
    if adapter.makes_known_heads:
        return heads_of(adapter, known, states)
    if known.known is None:
        raise InputError("the features must say which of the backbone's own they are")
    return knowledge.heads.take(known.known).plain(states.activation.shape[1])
