"""The judge: train candidates without some features, compare them on these features, and train the best.

``train_best`` is the training of ``Headstart``. The ``Judge`` chooses the adapter, its ``adjustments``, the
link of a binary table and the noise of reals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.base import Adapter, AdapterConfig, adapter_config
from headstart.adapters.bayes import default_meta_training
from headstart.adapters.chn_bayes import BLEND
from headstart.config import Config
from headstart.core.devices import CPU, compute_on, move
from headstart.core.neighbours import LocalStrengths, Neighbours, neighbours_of
from headstart.core.types import VALIDATION_SHOTS, Knowledge
from headstart.distributed import process_group
from headstart.linalg.row_sharded import global_count
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.kinds import KindType
from headstart.training.adjustments import (
    by_observations,
    fit_known_head_shares,
    fit_known_strengths,
    fit_local_strengths,
    lowers_error_at_rows,
)
from headstart.training.calibration import Calibration, Outcome, RowOutcomes
from headstart.training.comparison import (
    CandidateOutcomes,
    FeatureErrors,
    Verdict,
    beats,
    concatenate_outcomes,
    concatenate_row_outcomes,
    draw_rows,
    predict_held_out,
    predict_held_out_rows,
    score_means,
    verdict_of,
)
from headstart.training.episodes import Tasks, disjoint_tasks
from headstart.training.level_strength import fit_level_strength
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.recipe import (
    AdapterTrainer,
    Recipe,
    TrainedAdapter,
    TrainedParts,
    prepare,
    require_networks,
    resolve_backbone,
    train,
)
from headstart.training.table_inputs import (
    feature_batch,
    hide_scales,
    is_all_binary,
    modelled_table,
    unknown_units,
)

CLOSED_FORM, NETWORKS = "bayes", "chn-bayes"  # the candidates

LIKE_KNOWN = ", with known heads"  # in the name of a candidate whose new heads resemble known ones

MIN_FEATURES_TO_META_TRAIN = 1000  # with fewer, networks were never better than the closed form

# From this size on, the judge uses the final training of networks: a separate one would take too long.
MIN_OBSERVATIONS_AT_ONCE = 500_000

_MARGIN = 1.0  # standard errors by which networks must improve on the closed form

_RIVAL_MARGIN = 1.0  # standard errors by which another recipe may be behind before it is given up

MIN_FEATURES_TO_JUDGE = 12  # of a table, to compare candidates

_FOLD_SHARE = 0.15  # fraction of the features held out in one fold

_TARGET_HELD_OUT = 60  # features in all folds together, if the table has enough

_MAX_HELD_OUT = 400  # features in one fold

_MAX_FOLDS = 4


class Judgement(Config):
    """Comparison of candidates, with the name of the chosen one."""

    shots: tuple[int, ...]
    features: int  # held out in all folds together
    chosen: str
    candidates: dict[str, Verdict]
    means: Verdict | None = None  # errors of row and column means; None for clicks and several kinds
    ranking: str = "mean"  # the criterion that ranks features best for rows, on held-out cells


def draw_folds(
    columns: NDArray[np.int64], seed: int, groups: NDArray[np.int64] | None = None
) -> list[NDArray[np.int64]]:
    """Draw the columns to hold out in each fold; the fewer features, the more folds.

    ``groups`` (columns,) are the numbers of the features of ``columns``, by default all different: the levels
    of a category are held out together.
    """
    features, feature_of_column = np.unique(columns if groups is None else groups, return_inverse=True)
    order = np.random.default_rng(seed + 1).permutation(len(features))
    size = int(min(_MAX_HELD_OUT, max(2, round(_FOLD_SHARE * len(order)))))
    count = int(min(_MAX_FOLDS, max(1, round(_TARGET_HELD_OUT / size)), len(order) // size))
    held_out = (np.isin(feature_of_column, order[i * size : (i + 1) * size]) for i in range(count))
    return [np.sort(columns[mask]) for mask in held_out]


def keep_some(folds: list[NDArray[np.int64]], columns: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Leave ``columns`` out of a fold that has all of them, and leave out folds without others.

    >>> keep_some([np.array([1, 2]), np.array([3, 4])], np.array([2]))
    [array([1]), array([3, 4])]
    """
    parts = [np.setdiff1d(fold, columns) if np.isin(columns, fold).all() else fold for fold in folds]
    return [part for part in parts if len(part)]


def train_best(
    table: Table,
    features: NDArray[np.int64],
    recipe: Recipe,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> tuple[TrainedParts, Recipe, Judgement]:
    """Choose an adapter and, for binary tables, a link, and train them on all features of a table.

    The candidates are the closed form and, for tables of many features, networks blended with it. On a large
    table the judge uses the final training of the networks, with features held out from their meta-training
    only. A table with real features is always judged before the final training: the scale of a new real
    feature must be estimated, which only features held out from all training can show. The strength with
    which rows differ in categories is estimated on held-out cells.

    Returns
    -------
    trained : TrainedParts
        The chosen adapter, under the name "adapter", with its backbone.
    recipe : Recipe
        The recipe with the chosen link.
    judgement : Judgement
        The comparison of the candidates.
    """
    require_networks(table, [adapter_config(CLOSED_FORM)])
    judge = Judge(table, features, reporter, checkpoint, device)
    many = len(features) >= MIN_FEATURES_TO_META_TRAIN and not judge.has_clicks
    large = global_count(len(table)) >= MIN_OBSERVATIONS_AT_ONCE
    judge_in_training = many and large and not judge.has_reals
    choice = None
    if not judge_in_training or judge.all_binary:  # a link must be chosen before the final training
        choice = judge.choose(recipe, networks=many and not judge_in_training)
        recipe = choice.recipe
    trainer = prepare(
        table,
        features,
        features,
        recipe,
        cross_fit=True,
        reporter=reporter,
        checkpoint=checkpoint,
        device=device,
    )
    if choice is None or judge_in_training:
        trained, judgement = _train_and_choose(trainer, table, features)
        applies = choice is not None and choice.is_adjusted and trained.adapter.config.name == CLOSED_FORM
    else:
        calibrate = choice.calibration is None
        trained, applies = trainer.train(choice.adapter, "adapter", {}, calibrate=calibrate), True
    if choice is not None and applies:  # the adapter of the final training is the one that was judged
        trained, judgement = choice.apply(trained), choice.judgement
    if trained.adapter.config.name == CLOSED_FORM:
        strength = fit_level_strength(
            table,
            features,
            recipe,
            adapter_config(CLOSED_FORM),
            reporter=reporter,
            checkpoint=checkpoint,
            device=device,
        )
        calibration = replace(trained.calibration, level_strength=torch.tensor([strength]))
        trained = replace(trained, calibration=calibration)
    return TrainedParts(trainer.backbone, trainer.knowledge, {"adapter": trained}), recipe, judgement


def _train_and_choose(
    trainer: AdapterTrainer, table: Table, features: NDArray[np.int64]
) -> tuple[TrainedAdapter, Judgement]:
    """Train networks blended with the closed form; train the closed form alone if it is not worse.

    The ``trainer`` was prepared with this ``table`` and these ``features``.
    """
    trained = trainer.train(adapter_config(BLEND), "adapter", {})
    candidates, chosen = trained.candidates, NETWORKS
    if not beats(candidates[NETWORKS], candidates[CLOSED_FORM], _MARGIN):
        chosen, trained = CLOSED_FORM, trainer.train(adapter_config(CLOSED_FORM), "closed form", {})
        candidates = {**candidates, **trained.candidates}
    shares_and_outcomes = fit_known_head_shares(
        candidates[chosen],
        trained.adapter.set_known_head_shares,
        lambda: CandidateOutcomes(trainer.predict_validation(trained.adapter)),
    )
    if shares_and_outcomes is not None:
        chosen = f"{chosen}{LIKE_KNOWN}"
        _, candidates[chosen] = shares_and_outcomes
        calibration = Calibration.fit(candidates[chosen].outcomes, VALIDATION_SHOTS, by_level=True)
        trained = replace(trained, calibration=calibration)
    judgement = build_judgement(candidates, chosen, len(trainer.validation))
    if (positions := trainer.validation.batch.positions) is None or not means_apply(table, features):
        return trained, judgement
    held_out = features[positions.cpu().numpy()]
    table, others = modelled_table(table, trainer.recipe.binary_link), np.setdiff1d(features, held_out)
    tasks = disjoint_tasks(feature_batch(table.with_features(held_out)), trainer.knowledge)
    errors = score_means(table.with_features(others).cells(), tasks, seed=trainer.recipe.random_state)
    return trained, judgement.revised(means=_verdict_at(judgement.shots, [errors]))


@dataclass(frozen=True)
class Choice:
    """Adapter and link chosen by the judge, with the comparison and the adapter's calibration."""

    recipe: Recipe
    adapter: AdapterConfig
    judgement: Judgement
    calibration: Calibration | None = None
    local: LocalStrengths | None = None  # of local parts; None: without them
    shrinks_mean: bool = False  # whether the mean head is shrunk towards the direction of row means
    known_heads: Tensor | None = None  # shares of heads that resemble known ones; None: 0

    @property
    def is_adjusted(self) -> bool:
        """Whether the adapter gets a local part, a shrunk mean head, or shares of known heads."""
        return self.local is not None or self.shrinks_mean or self.known_heads is not None

    def apply(self, trained: TrainedAdapter) -> TrainedAdapter:
        """Adjust a trained adapter; return it with the local part and, if there is one, the calibration."""
        adapter = trained.adapter
        if self.shrinks_mean:
            adapter.shrink_mean_head()
        if adapter.mixes_known_heads:  # the final training may have set other shares
            adapter.set_known_head_shares(0.0 if self.known_heads is None else self.known_heads)
        return replace(trained, calibration=self.calibration or trained.calibration, local=self.local)


@dataclass(frozen=True)
class Fold:
    """Adapters that were trained without some features, and these features."""

    adapters: dict[str, Adapter]  # by the names of candidates
    tasks: Tasks  # the held-out features
    groups: Tensor  # (held-out features,): their numbers, which identify features of all folds
    knowledge: Knowledge
    units: Tensor  # (held-out features,): of their errors, as in ``Outcome``
    neighbours: Neighbours | None  # None: predictions have no local part
    seed: int
    all_binary: bool

    def predict(self, name: str, *, local: bool = False) -> dict[int, Outcome]:
        """Predict the held-out features with one adapter; if ``local``, outcomes have local parts."""
        outcomes = predict_held_out(
            self.adapters[name],
            self.knowledge.likelihood,
            self.tasks,
            seed=self.seed,
            all_binary=self.all_binary,
            neighbours=self.neighbours if local else None,
            rows=global_count(len(self.knowledge.states)),
        )
        return {
            shots: replace(
                outcome,
                feature=self.groups[outcome.feature],
                unit=self.units[outcome.feature],
            )
            for shots, outcome in outcomes.items()
        }


@dataclass(frozen=True)
class RecipeOutcomes:
    """Outcomes of candidates that were trained with one recipe, in all folds."""

    folds: list[Fold]
    outcomes: list[dict[str, dict[int, Outcome]]]  # by fold, name and shots, without local parts
    rows: RowOutcomes | None  # of the closed form at held-out rows; None if no rows were held out
    means: list[dict[int, FeatureErrors]]  # of row and column means, by fold; empty if not computed
    is_complete: bool  # whether it was trained in all folds

    def candidate(self, name: str, folds: int | None = None) -> CandidateOutcomes:
        """Return the outcomes of a candidate in the first ``folds``, by default in all."""
        return _concatenate_folds([outcomes[name] for outcomes in self.outcomes[:folds]])

    def predict(self, name: str, *, local: bool = False) -> CandidateOutcomes:
        """Predict the held-out features of all folds with the adapter ``name``."""
        return _concatenate_folds([fold.predict(name, local=local) for fold in self.folds])

    def set_known_head_shares(self, name: str, shares: Tensor | float) -> None:
        """Set the shares of heads that resemble known ones in the adapter ``name`` of each fold."""
        for fold in self.folds:
            fold.adapters[name].set_known_head_shares(shares)

    def shrink_mean_heads(self) -> None:
        """Shrink the mean head of the closed form of each fold."""
        for fold in self.folds:
            fold.adapters[CLOSED_FORM].shrink_mean_head()


class Leader(NamedTuple):
    """The best of the candidates that were compared so far."""

    name: str
    recipe: Recipe
    adapter: AdapterConfig
    outcomes: RecipeOutcomes


class FoldOutcomes(NamedTuple):
    """Outcomes of one fold, as in ``RecipeOutcomes``; those of a candidate by shots."""

    fold: Fold
    outcomes: dict[str, dict[int, Outcome]]
    rows: RowOutcomes | None
    means: dict[int, FeatureErrors] | None


class Judge:
    """Train candidates without some features, and compare their predictions of these features.

    A held-out feature is new to the backbone, the row states, the prior and the adapter. In each fold some
    rows are held out, too, to calibrate the predictions of known features.

    Parameters
    ----------
    table : Table
        The observations.
    features : ndarray of int
        The positions of the features to use.
    reporter, checkpoint, device
        As in ``train``.
    """

    def __init__(
        self,
        table: Table,
        features: NDArray[np.int64],
        reporter: Reporter,
        checkpoint: Callable[[str], Path | None],
        device: torch.device = CPU,
    ) -> None:
        self.table, self.features, self.device = table, features, device
        self.reporter, self.checkpoint = reporter, checkpoint
        self.groups = table.groups
        types = table.kinds.types[features]
        clicks = features[types == KindType.CLICK]
        self.folds = keep_some(draw_folds(features, 0, self.groups[features]), clicks)
        self.all_binary = is_all_binary(table)
        self.means_apply = means_apply(table, features)
        self.has_reals = bool((types == KindType.REAL).any())
        self.has_clicks = len(clicks) > 0  # only the closed form reads their zeros

    def choose(self, recipe: Recipe, *, networks: bool = False) -> Choice:
        """Choose among the closed form, networks if ``networks``, and both links of a binary table.

        New heads of the chosen candidate resemble known ones (``KnownHeads``) if this lowers its error. The
        closed form gets a mean head that is shrunk towards the direction of row means (``mean_head_change``)
        if this lowers its error, and the chosen candidate a local part if ``fit_local_strengths`` finds
        strengths for it.
        """
        if len(np.unique(self.groups[self.features])) < MIN_FEATURES_TO_JUDGE or not self.folds:
            no_comparison = Judgement(shots=(), features=0, chosen=CLOSED_FORM, candidates={})
            return Choice(recipe, adapter_config(CLOSED_FORM), no_comparison)
        leader, candidates, means = self._choose_recipe(recipe, networks=networks)
        chosen, recipe, adapter, trained = leader
        candidates[chosen] = trained.predict(adapter.name, local=True)
        known_head_shares = None
        if not self.has_clicks:  # whose rankings are judged
            shares_and_outcomes = fit_known_head_shares(
                candidates[chosen],
                partial(trained.set_known_head_shares, adapter.name),
                partial(trained.predict, adapter.name, local=True),
            )
            if shares_and_outcomes is not None:
                chosen = f"{chosen}{LIKE_KNOWN}"
                known_head_shares, candidates[chosen] = shares_and_outcomes
        shrinks_mean = False
        if adapter.name == CLOSED_FORM:
            trained.shrink_mean_heads()
            shrunk = _with_local_of(trained.predict(CLOSED_FORM), candidates[chosen])
            shrinks_mean = beats(shrunk, candidates[chosen], 0.0)
            if shrinks_mean:
                chosen = f"{chosen}, shrunk to row means"
                candidates[chosen] = shrunk
        strengths = None
        strengths_and_outcomes = fit_local_strengths(candidates[chosen])
        if strengths_and_outcomes is not None:
            chosen = f"{chosen}, with neighbours"
            strengths, candidates[chosen] = strengths_and_outcomes
        judgement = build_judgement(
            candidates, chosen, sum(len(np.unique(self.groups[fold])) for fold in self.folds)
        )
        if means:
            judgement = judgement.revised(means=_verdict_at(judgement.shots, means))
        calibration = Calibration.fit(candidates[chosen].outcomes, VALIDATION_SHOTS, by_level=True)
        if trained.rows is not None:
            at_rows, rows = fit_known_strengths(trained.rows)
            if any(at_rows):
                strengths = (strengths or LocalStrengths()).revised(known=at_rows)
            calibration = calibration.fit_known(rows)
        return Choice(recipe, adapter, judgement, calibration, strengths, shrinks_mean, known_head_shares)

    def _choose_recipe(
        self, recipe: Recipe, *, networks: bool
    ) -> tuple[Leader, dict[str, CandidateOutcomes], list[dict[int, FeatureErrors]]]:
        """Train the closed form, networks if ``networks``, and other recipes that apply; choose the best.

        Return the best candidate, the outcomes of all candidates by name, and the errors of row and column
        means by fold. No outcome has a local part.
        """
        closed_form = adapter_config(CLOSED_FORM)
        adapters = (closed_form, adapter_config(BLEND)) if networks else (closed_form,)
        first = self._train_in_folds(recipe, adapters)
        candidates = {adapter.name: first.candidate(adapter.name) for adapter in adapters}
        leader = Leader(CLOSED_FORM, recipe, closed_form, first)
        as_numbers = recipe.revised(binary_link="identity")
        if self.all_binary and as_numbers != recipe:
            rival = self._train_in_folds(as_numbers, (closed_form,), leader=leader.outcomes)
            if rival.is_complete:
                name = f"{CLOSED_FORM}, 0 and 1 as numbers"
                candidates[name] = rival.candidate(CLOSED_FORM)
                if beats(candidates[name], candidates[leader.name], 0.0):
                    leader = Leader(name, as_numbers, closed_form, rival)
        if not networks and (with_noise := self._with_noise_by_feature(leader.recipe)) is not None:
            rival = self._train_in_folds(with_noise, (closed_form,), leader=leader.outcomes)
            if rival.is_complete:
                name = f"{CLOSED_FORM}, noise by feature"
                candidates[name] = rival.candidate(CLOSED_FORM)
                is_worse = beats(candidates[leader.name], candidates[name], 0.0)
                if not is_worse and _no_worse_at_rows(rival, leader.outcomes):
                    leader = Leader(name, with_noise, closed_form, rival)
        if networks and beats(candidates[NETWORKS], candidates[leader.name], _MARGIN):
            leader = Leader(NETWORKS, recipe, adapter_config(BLEND), first)
        return leader, candidates, first.means

    def _with_noise_by_feature(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe with a noise of each real feature; None if there is nothing to choose."""
        if recipe.backbone.estimates_noise_by_feature is not None:
            return None
        if not self.has_reals:
            return None
        return recipe.revised(backbone=recipe.backbone.with_noise_by_feature())

    def _train_in_folds(
        self, recipe: Recipe, adapters: tuple[AdapterConfig, ...], leader: RecipeOutcomes | None = None
    ) -> RecipeOutcomes:
        """Train and predict in all folds; one of ``adapters`` is the closed form.

        With a ``leader``, stop after a fold if its closed form is better by more than ``_RIVAL_MARGIN``.
        """
        link = f" ({recipe.binary_link} link)" if self.all_binary else ""
        names = " and ".join(adapter.name for adapter in adapters)
        self.reporter.say(f"Judging {names}{link} on features held out")
        folds: list[FoldOutcomes] = []
        for number in range(len(self.folds)):
            # Local parts of known features take time: later folds have them only if they help in the first.
            local_rows = not folds or (folds[0].rows is not None and lowers_error_at_rows(folds[0].rows))
            means = leader is None and self.means_apply  # the same for all recipes
            folds.append(self.judge_fold(recipe, adapters, number, local_rows=local_rows, means=means))
            if leader is not None:
                rival = _concatenate_folds([fold.outcomes[CLOSED_FORM] for fold in folds])
                if beats(leader.candidate(CLOSED_FORM, len(folds)), rival, _RIVAL_MARGIN):
                    break
        rows = [fold.rows for fold in folds if fold.rows is not None]
        if any(part.outcome.local is None for part in rows):
            rows = [replace(part, outcome=replace(part.outcome, local=None)) for part in rows]
        return RecipeOutcomes(
            [fold.fold for fold in folds],
            [fold.outcomes for fold in folds],
            concatenate_row_outcomes(rows) if rows else None,
            [fold.means for fold in folds if fold.means is not None],
            len(folds) == len(self.folds),
        )

    def delivered_recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with those settings that depend on the features, as all features set them.

        A fold has fewer features, for which the defaults can be others.
        """
        table = modelled_table(self.table, recipe.binary_link).with_features(self.features)
        given = recipe.metatraining.model_dump(exclude_unset=True)
        return recipe.revised(
            backbone=resolve_backbone(recipe.backbone, table),
            metatraining=MetaTrainingConfig(**{**default_meta_training(len(self.features)), **given}),
        )

    def judge_fold(
        self,
        recipe: Recipe,
        adapters: tuple[AdapterConfig, ...],
        number: int,
        *,
        local_rows: bool = True,
        means: bool = False,
    ) -> FoldOutcomes:
        """Train adapters without the features of a fold and some rows, and predict these.

        If ``local_rows``, the outcomes at rows have the local parts of known features. If ``means``, row and
        column means predict the features, too.
        """
        recipe = self.delivered_recipe(recipe)
        table, hidden_rows, others = self._hide(number)
        trained = self._train_fold(recipe, adapters, number, table, others)
        fold = self._fold(recipe, number, table, others, trained)
        known = modelled_table(table, recipe.binary_link).with_features(others)
        rows = None
        if hidden_rows is not None:
            new = modelled_table(replace(hidden_rows, kinds=table.kinds), recipe.binary_link)
            rows = predict_held_out_rows(
                fold.adapters[CLOSED_FORM],
                trained.backbone,
                trained.knowledge,
                move(feature_batch(known), self.device),
                move(new.with_features(others).cells(), self.device),
                seed=recipe.random_state,
                all_binary=self.all_binary,
                neighbours=fold.neighbours if local_rows else None,
            )
        errors = score_means(known.cells(), fold.tasks, seed=recipe.random_state) if means else None
        return FoldOutcomes(fold, {name: fold.predict(name) for name in fold.adapters}, rows, errors)

    def _train_fold(
        self,
        recipe: Recipe,
        adapters: tuple[AdapterConfig, ...],
        number: int,
        table: Table,
        others: NDArray[np.int64],
    ) -> TrainedParts:
        """Train adapters on the features ``others`` of the ``table`` of a fold."""
        names = [adapter.name for adapter in adapters]
        noise = ["noise"] if recipe.backbone.estimates_noise_by_feature else []
        prefix = "-".join(["judge", *names, recipe.binary_link, *noise, str(number)])
        return train(
            table,
            others,
            others,
            recipe,
            dict(zip(names, adapters, strict=True)),
            reporter=self.reporter,
            checkpoint=lambda name: self.checkpoint(f"{prefix}-{name}"),
            device=self.device,
            calibrate=False,
        )

    def _fold(
        self, recipe: Recipe, number: int, table: Table, others: NDArray[np.int64], trained: TrainedParts
    ) -> Fold:
        """Return the fold with the parts that were trained on ``others``, and its held-out features."""
        held_out, knowledge = self.folds[number], trained.knowledge
        modelled = modelled_table(table, recipe.binary_link).with_features(held_out)
        batch = move(feature_batch(modelled, table.kinds.take(others).middle_real()), self.device)
        with compute_on(self.device):
            tasks = disjoint_tasks(batch, knowledge)
        # Several processes have the residuals of some rows each: their models have no local part. Clicks have
        # none, because the residuals of zeros are not stored.
        has_local_parts = process_group().is_single and not self.has_clicks
        return Fold(
            {name: candidate.adapter for name, candidate in trained.adapters.items()},
            tasks,
            torch.from_numpy(self.groups[held_out]),
            knowledge,
            move(unknown_units(batch), CPU),
            neighbours_of(knowledge) if has_local_parts else None,
            recipe.random_state,
            self.all_binary,
        )

    def _hide(self, number: int) -> tuple[Table, Table | None, NDArray[np.int64]]:
        """Hide the features of a fold, and some rows if one process has all of them.

        Return the table of the other rows, in which the scales of hidden features are unknown, the table of
        the hidden rows, None without any, and the positions of the features to train on.
        """
        others, table, rows = np.setdiff1d(self.features, self.folds[number]), self.table, None
        if process_group().is_single and not self.has_clicks:
            hidden_rows = draw_rows(len(table.rows), number)
            if hidden_rows.any():
                table, rows = table.with_rows(~hidden_rows), table.with_rows(hidden_rows)
                others = others[table.counts[others] > 0]
        return hide_scales(table, others), rows, others


def _with_local_of(candidate: CandidateOutcomes, other: CandidateOutcomes) -> CandidateOutcomes:
    """Return the outcomes of ``candidate`` with the local parts of ``other``.

    Its own are nearly the same, and would take long to compute.
    """
    return CandidateOutcomes(
        {
            shots: replace(outcome, local=other.outcomes[shots].local)
            for shots, outcome in candidate.outcomes.items()
        }
    )


def _concatenate_folds(parts: list[dict[int, Outcome]]) -> CandidateOutcomes:
    """Concatenate the outcomes of one candidate in all folds."""
    shots = [k for k in VALIDATION_SHOTS if any(k in part for part in parts)]
    return CandidateOutcomes(
        {k: concatenate_outcomes([part[k] for part in parts if k in part]) for k in shots}
    )


def means_apply(table: Table, features: NDArray[np.int64]) -> bool:
    """Return whether row and column means can predict the ``features``: their values share one unit."""
    kinds = table.kinds.take(features)
    units = {(kind.type, kind.offset, kind.span) for kind in kinds}
    return len(units) == 1 and kinds[0].type != KindType.CLICK and process_group().is_single


def _verdict_at(shots: tuple[int, ...], folds: list[dict[int, FeatureErrors]]) -> Verdict:
    """Return the errors of several folds at these numbers of ``shots``."""
    return verdict_of({k: FeatureErrors.concatenate([fold[k] for fold in folds if k in fold]) for k in shots})


def _no_worse_at_rows(candidate: RecipeOutcomes, other: RecipeOutcomes) -> bool:
    """Return whether a candidate has no larger error at held-out rows; yes if none were held out."""
    if candidate.rows is None or other.rows is None:
        return True
    return not beats(by_observations(other.rows)[0], by_observations(candidate.rows)[0], 0.0)


def build_judgement(candidates: Mapping[str, CandidateOutcomes], chosen: str, features: int) -> Judgement:
    """Summarise the comparison of candidates on ``features`` held-out features."""
    verdicts = {name: candidate.verdict() for name, candidate in candidates.items()}
    shots = tuple(candidates[chosen].outcomes)
    return Judgement(shots=shots, features=features, chosen=chosen, candidates=verdicts)
