"""The honest judge: what is held out is new to everything, and candidates are compared fairly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from tests.limits import Limits, watch
from tests.model.conftest import ratings_table
from tests.oracles.judge import is_better
from tests.oracles.rankings import weighted_ndcg as slow_ndcg

from headstart.adapters.base import adapter_config
from headstart.adapters.bayes import default_meta_training
from headstart.adapters.chn_bayes import CHNBayes
from headstart.backbones.base import build_backbone
from headstart.backbones.factorisation import FactorisationConfig
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import Predictive
from headstart.core.types import VALIDATION_SHOTS, FeatureBatch, Heads, RowStates, interpolate_shots
from headstart.core.value_references import RowColumnMeans
from headstart.datasets import synthetic_clicks, synthetic_diagnoses, synthetic_mixed
from headstart.model import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.kinds import KindType
from headstart.training.adjustments import fit_known_strengths, fit_local_strengths
from headstart.training.calibration import Outcome, RowOutcomes
from headstart.training.comparison import (
    CandidateOutcomes,
    add_zeros,
    beats,
    blend_outcomes,
    concatenate_outcomes,
    draw_rows,
    isotonic_decreasing,
    predict_held_out,
    smooth_shares,
    weighted_ndcg,
)
from headstart.training.episodes import cross_fitted_tasks
from headstart.training.judge import LIKE_KNOWN, Judge, draw_folds, means_apply, train_best
from headstart.training.meta_training import validation_episodes
from headstart.training.recipe import AdapterTrainer, Recipe, prepare, resolve_backbone, train
from headstart.training.table_inputs import feature_batch, modelled_table

QUIET = Reporter(quiet=True)

SHRUNK = ", shrunk to row means"  # of the closed form, if this lowers its error


def nowhere(_: str) -> Path | None:
    return None


@given(st.integers(4, 3000), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_folds_are_disjoint_and_leave_most_features(features: int, seed: int) -> None:
    names = 3 * np.arange(features) + 7  # any positions
    found = draw_folds(names, seed)
    every = np.concatenate(found)
    assert len(set(every.tolist())) == len(every)
    assert set(every.tolist()) <= set(names.tolist())
    assert 1 <= len(found) <= 4
    assert len(every) <= 0.6 * features + 8
    for fold in found:
        assert 2 <= len(fold) <= max(2, 0.15 * features + 1)
        assert len(fold) <= 400
        assert (np.diff(fold) > 0).all()
    assert len(every) >= min(40, 0.5 * features - 4)  # as many as can be had
    for one, other in zip(found, draw_folds(names, seed), strict=True):
        assert np.array_equal(one, other)


def outcome(features: list[int], errors: list[list[float]]) -> Outcome:
    """Predictions off by these errors, for each feature."""
    feature = torch.tensor([name for name, own in zip(features, errors, strict=True) for _ in own])
    off = torch.tensor([error for own in errors for error in own])
    kinds = torch.full(off.shape, KindType.RATING)
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    predictive = Predictive(0.5 + off, torch.zeros_like(off), torch.ones_like(off), kinds, likelihood)
    return Outcome(predictive, torch.full(off.shape, 0.5), feature, torch.zeros_like(off).bool())


@given(seed=st.integers(0, 9999), margin=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
@settings(max_examples=80, deadline=None)
def test_candidates_are_compared_feature_by_feature(seed: int, margin: float) -> None:
    """Whichever features have enough observations for how many shots, and in whatever order."""
    random = np.random.default_rng(seed)
    made: list[dict[int, Outcome]] = [{}, {}]
    names = random.permutation(40)[:8]
    for shots in (0, 1, 4):
        there = [int(n) for n in names if random.random() < 1 - shots / 8] or [int(names[0])]
        counts = random.integers(1, 4, len(there))
        for number, each in enumerate(made):
            off = [list(random.normal(size=n) * (1 - 0.1 * number)) for n in counts]
            each[shots] = outcome(there, off)
    one, two = CandidateOutcomes(made[0]), CandidateOutcomes(made[1])
    for candidate, other in ((one, two), (two, one)):
        assert beats(candidate, other, margin) == is_better(candidate, other, margin)
    assert not beats(one, one, 0.0)


def test_outcomes_of_different_features_are_put_together() -> None:
    one, other = outcome([3, 9], [[0.1, 0.2], [0.3]]), outcome([4], [[-1.0, 0.5]])
    whole = concatenate_outcomes([one, other])
    assert whole.feature.tolist() == [3, 3, 9, 4, 4]
    assert whole.features == 3
    torch.testing.assert_close(whole.predictive.mean, torch.cat([one.predictive.mean, other.predictive.mean]))
    torch.testing.assert_close(whole.truth, torch.cat([one.truth, other.truth]))
    assert concatenate_outcomes([one]) is one
    verdict = CandidateOutcomes({0: whole, 4: one}).verdict()
    errors = [[[0.01, 0.04], [1, 0.25], [0.09]], [[0.01, 0.04], [0.09]]]
    means = [np.mean([error for own in each for error in own]) for each in errors]
    np.testing.assert_allclose(verdict.error, means, rtol=1e-5)
    for mean, each, found in zip(means, errors, verdict.standard_error, strict=True):
        apart = sum((sum(own) - mean * len(own)) ** 2 for own in each)
        assert found == pytest.approx(np.sqrt(apart) / sum(len(own) for own in each), rel=1e-5)


def test_outcomes_without_weights_count_once_beside_others() -> None:
    """Of a fold whose values all have the weight 1, the weights are not stored."""
    one, other = outcome([3, 9], [[0.1, 0.2], [0.3]]), outcome([4], [[-1.0, 0.5]])
    weights = torch.tensor([0.5, 2.0])
    whole = concatenate_outcomes([one, replace(other, weights=weights)])
    torch.testing.assert_close(whole.weights, torch.cat([torch.ones(3), weights]))
    assert concatenate_outcomes([one, other]).weights is None


def test_errors_are_in_units_of_each_feature() -> None:
    """Whatever unit a feature has, its errors relative to its deviation count as much."""
    one, other = outcome([3, 9], [[0.1, 0.2], [0.3]]), outcome([3, 9], [[0.2, 0.1], [0.1]])
    verdict = CandidateOutcomes({0: one}).verdict()
    units, larger = torch.tensor([1.0, 1.0, 1000.0]), outcome([3, 9], [[0.1, 0.2], [300.0]])
    same = CandidateOutcomes({0: replace(larger, unit=units)}).verdict()
    np.testing.assert_allclose(same.error, verdict.error, rtol=1e-5)
    np.testing.assert_allclose(same.standard_error, verdict.standard_error, rtol=1e-5)
    larger_other = outcome([3, 9], [[0.2, 0.1], [100.0]])
    shares = smooth_shares([(one, other)])
    np.testing.assert_allclose(
        smooth_shares([(replace(larger, unit=units), replace(larger_other, unit=units))]), shares, rtol=1e-5
    )
    whole = concatenate_outcomes([replace(larger, unit=units), replace(larger_other, unit=units)])
    assert torch.equal(whole.at(slice(3, 6)).unit, units)


def test_features_of_all_scales_count_alike_in_the_errors_to_expect() -> None:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(150, 2)) @ random.normal(size=(2, 16)) + 0.3 * random.normal(size=(150, 16))
    scales = 10.0 ** random.integers(-3, 7, 16)
    names = [f"column {j}" for j in range(16)]
    frame = pa.table(
        {"row": [str(i) for i in range(150)], **dict(zip(names, (outputs * scales).T, strict=True))}
    )
    errors = {
        item.shots: item.error
        for item in Headstart(quiet=True).fit(frame, row="row", kinds="real").info.errors
    }
    assert 0.1 < errors[16] < errors[4] < 2  # in standard deviations of the features


def test_few_reals_among_ratings_are_held_out_in_some_folds_only() -> None:
    random = np.random.default_rng(0)
    outputs = random.normal(size=(60, 2)) @ random.normal(size=(2, 14))
    outputs[:, :12] = np.clip(np.round(outputs[:, :12] + 3), 1, 5)
    names = [f"column {j}" for j in range(14)]
    frame = pa.table({"row": [str(i) for i in range(60)], **dict(zip(names, outputs.T, strict=True))})
    model = Headstart(quiet=True).fit(frame, row="row")
    assert all(np.isfinite(item.error) for item in model.info.errors)


def test_a_feature_keeps_its_name_at_every_number_of_shots() -> None:
    """Told by the values: every feature has its own."""
    table = ratings_table(40, 12)
    every = np.arange(12)
    trained = train(table, every, every, Recipe(), {"a": adapter_config("mean")}, reporter=QUIET,
                    checkpoint=nowhere)  # fmt: skip
    batch = feature_batch(table)
    batch = batch.observing(batch.cells.keep(batch.cells.index < 10 + 2 * batch.cells.lines))
    values = batch.cells.lines.float() / 11
    named = batch.observing(type(batch.cells)(batch.cells.indptr, batch.cells.index, values, 40))
    tasks = cross_fitted_tasks(named, trained.backbone, trained.knowledge, seed=0)
    found = predict_held_out(trained.adapters["a"].adapter, trained.knowledge.likelihood, tasks, seed=0)
    assert len(found) >= 3
    for shots, each in found.items():
        assert sorted(set(each.feature.tolist())) == torch.nonzero(named.shots > shots)[:, 0].tolist()
        torch.testing.assert_close(each.truth, each.feature.float() / 11)


@pytest.mark.parametrize("table", [synthetic_mixed(60, 18), synthetic_clicks(60, 20, density=0.3)])
def test_numbers_of_shots_are_predicted_together_as_one_by_one(table: Table, limits: Limits) -> None:
    every = np.arange(len(table.features))
    trained = train(table, every, every, Recipe(), {"a": adapter_config("bayes")}, reporter=QUIET,
                    checkpoint=nowhere, calibrate=False)  # fmt: skip
    tasks = cross_fitted_tasks(feature_batch(table), trained.backbone, trained.knowledge, seed=0)
    adapter, likelihood = trained.adapters["a"].adapter, trained.knowledge.likelihood
    together = predict_held_out(adapter, likelihood, tasks, seed=0)
    limits(cells_predicted_together=1)
    one_by_one = predict_held_out(adapter, likelihood, tasks, seed=0)
    assert list(together) == list(one_by_one)
    for shots, each in together.items():
        other = one_by_one[shots]
        assert torch.equal(each.feature, other.feature)
        assert torch.equal(each.truth, other.truth)
        torch.testing.assert_close(each.predictive.mean, other.predictive.mean)
        torch.testing.assert_close(each.predictive.std, other.predictive.std)


def real_table(seed: int, changed: np.ndarray | None = None) -> Table:
    """Reals with scales of their own; the columns in ``changed`` hold something else altogether."""
    random = np.random.default_rng(seed)
    taste = random.normal(size=(40, 2))
    columns = taste @ random.normal(size=(2, 14)) + 0.3 * random.normal(size=(40, 14))
    columns = 10.0 ** np.arange(-3, 4, 0.5) * (columns + random.normal(size=14))
    for j in [] if changed is None else changed:
        columns[:, j] = 1e5 * random.exponential(size=40)
    frame = {"row": [f"u{i}" for i in range(40)]} | {f"f{j:02}": columns[:, j] for j in range(14)}
    return Table.read(pa.table(frame), kinds="real")


def changed_ratings(held: np.ndarray | None = None) -> Table:
    table = ratings_table(50, 14)
    values = table.values.copy()
    if held is not None:
        mine = np.isin(table.feature_index, held)
        values[mine] = 6 - values[mine]
    return replace(table, values=values)


@pytest.mark.parametrize("make", [lambda held=None: real_table(0, held), changed_ratings])
@pytest.mark.parametrize("adapter", ["bayes", "chn-bayes-blend"])
def test_what_is_held_out_is_hidden_from_backbone_and_adapter(
    make: Callable[..., Table], adapter: str
) -> None:
    recipe, config = Recipe(metatraining={"epochs": 2}), adapter_config(adapter)
    outcomes = []
    held = draw_folds(np.arange(14), seed=0)[1]
    with watch("judge trainings") as seen:
        for table in (make(), make(held)):
            honest = Judge(table, np.arange(14), QUIET, nowhere)
            assert np.array_equal(honest.folds[1], held)
            fold = honest.judge_fold(recipe, (adapter_config("bayes"), config), 1)
            outcomes.append(fold.outcomes[config.name])
    one, other = (call.result for call in seen)
    for mine, yours in (
        (one.backbone, other.backbone),
        (one.adapters[config.name].adapter, other.adapters[config.name].adapter),
    ):
        theirs = yours.state_dict()
        for name, value in mine.state_dict().items():
            assert torch.equal(value, theirs[name]), name
    assert torch.equal(one.knowledge.states.activation, other.knowledge.states.activation)
    assert not torch.equal(outcomes[0][0].truth, outcomes[1][0].truth)
    mean = [each[0].predictive.mean for each in outcomes]
    assert torch.equal(*mean)  # without observations nothing can be told of them
    assert set(outcomes[0][0].feature.tolist()) == set(held.tolist())


def test_rows_that_are_held_out_are_hidden_from_training() -> None:
    table, recipe, bayes = ratings_table(50, 14), Recipe(), adapter_config("bayes")
    held = draw_rows(50, 1)
    assert int(held.sum()) == 5
    values = np.where(held[table.row_index], 6 - table.values, table.values)
    folds = []
    with watch("judge trainings") as seen:
        for changed in (table, replace(table, values=values)):
            folds.append(Judge(changed, np.arange(14), QUIET, nowhere).judge_fold(recipe, (bayes,), 1))
    one, other = (call.result.backbone.state_dict() for call in seen)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    mine, yours = folds
    assert torch.equal(mine.outcomes["bayes"][4].predictive.mean, yours.outcomes["bayes"][4].predictive.mean)
    assert mine.rows is not None
    assert yours.rows is not None
    outcome = mine.rows.outcome
    assert set(outcome.feature.tolist()) <= set(range(5))
    assert len(mine.rows.shots) == len(outcome.truth)
    torch.testing.assert_close(outcome.truth, 1 - yours.rows.outcome.truth)
    counts = np.bincount(table.with_rows(held).row_index, minlength=5)
    targets = counts - counts // 2  # less the observations of the fold's features, once per context size
    assert len(outcome.truth) <= (targets * len(VALIDATION_SHOTS)).sum()


def test_the_judges_choice_is_trained_on_everything() -> None:
    table = changed_ratings()
    trained, recipe, judgement = train_best(
        table, np.arange(14), Recipe(), reporter=QUIET, checkpoint=nowhere
    )
    assert recipe == Recipe()
    assert trained.backbone.features == 14
    assert judgement.chosen in judgement.candidates
    assert {name.split(",")[0] for name in judgement.candidates} == {"bayes"}
    assert judgement.features == sum(len(fold) for fold in draw_folds(np.arange(14), seed=0))
    assert judgement.shots == tuple(k for k in VALIDATION_SHOTS if k in judgement.shots)
    assert len(judgement.candidates["bayes"].error) == len(judgement.shots)
    calibration = trained.adapters["adapter"].calibration
    assert bool((calibration.factors[KindType.RATING] != 1).any())


@pytest.mark.parametrize("large", [False, True], ids=["folds", "final training"])
def test_row_and_column_means_are_judged_on_the_same_features(large: bool, limits: Limits) -> None:
    limits(judge_folds=1, meta_training_features=14, network_margin=np.inf)
    if large:
        limits(one_training_observations=0)
    table, recipe = changed_ratings(), Recipe(metatraining={"epochs": 1, "validation_share": 0.3})
    with watch("errors of means") as seen:
        judgement = train_best(table, np.arange(14), recipe, reporter=QUIET, checkpoint=nowhere)[2]
    assert judgement.means is not None
    (call,) = seen
    known, tasks = call.arguments
    assert known.width == 14 - judgement.features
    for error, shots in zip(judgement.means.error, judgement.shots, strict=True):
        means, squares = RowColumnMeans(known), []
        episode = validation_episodes(tasks, VALIDATION_SHOTS[-1], recipe.random_state)[shots][0]
        contexts, targets = episode.context.cells, episode.targets
        for line in range(len(targets)):
            rows, values = contexts.index[contexts.lines == line], contexts.values[contexts.lines == line]
            effect = (values - means.rows[rows, 0]).sum() / (shots + means.feature_penalty)
            rows, values = targets.index[targets.lines == line], targets.values[targets.lines == line]
            predicted = (means.rows[rows, 0] + effect).clamp(0, 1)
            squares += ((predicted - values) ** 2).tolist()
        assert error == pytest.approx(np.mean(squares), rel=1e-6)


def test_row_and_column_means_are_not_judged_on_clicks_and_several_kinds() -> None:
    for table, apply in (
        (ratings_table(20, 14), True),
        (synthetic_clicks(20, 14), False),
        (synthetic_mixed(20, 14), False),
    ):
        assert means_apply(table, np.arange(len(table.features))) == apply


def test_too_few_features_are_not_judged() -> None:
    table = ratings_table(40, 11)
    _, _, judgement = train_best(table, np.arange(11), Recipe(), reporter=QUIET, checkpoint=nowhere)
    assert (judgement.features, judgement.chosen, judgement.candidates) == (0, "bayes", {})


@pytest.mark.parametrize(
    ("make", "large", "at_once"),
    [(changed_ratings, True, True), (changed_ratings, False, False), (lambda: real_table(0), True, False)],
    ids=["many ratings", "few ratings", "reals"],
)
@pytest.mark.parametrize(("margin", "chosen"), [(-np.inf, "chn-bayes"), (np.inf, "bayes")])
def test_networks_are_judged_where_there_are_many_features(
    make: Callable[[], Table],
    large: bool,
    at_once: bool,
    margin: float,
    chosen: str,
    limits: Limits,
) -> None:
    limits(meta_training_features=14)
    if large:
        limits(one_training_observations=0)
    limits(network_margin=margin, shrinkage_features=1e9)  # else networks may get no share at all
    limits(judge_folds=1, local_harm=-np.inf)  # is enough here, without a local part
    table, recipe = make(), Recipe(metatraining={"epochs": 1, "validation_share": 0.3})
    trained, _, judgement = train_best(table, np.arange(14), recipe, reporter=QUIET, checkpoint=nowhere)
    assert trained.adapters["adapter"].adapter.config.name == chosen
    assert judgement.chosen.removesuffix(SHRUNK).removesuffix(LIKE_KNOWN) == chosen
    tried = {name.removesuffix(SHRUNK).removesuffix(LIKE_KNOWN) for name in judgement.candidates}
    assert tried == {"bayes", "chn-bayes"}
    # One training judges on the four features held back from networks, or else on the fold of two that is
    # held out of everything; a new real feature, which has to find its scale, needs the latter.
    assert judgement.features == (4 if at_once else 2)


def test_binary_tables_are_also_tried_as_numbers(limits: Limits) -> None:
    limits(judge_folds=1, local_harm=-np.inf)
    table = synthetic_diagnoses(60, 14)
    choice = Judge(table, np.arange(14), QUIET, nowhere).choose(Recipe())
    judgement = choice.judgement
    tried = {name.removesuffix(LIKE_KNOWN) for name in judgement.candidates}
    assert tried == {"bayes", "bayes, 0 and 1 as numbers"}
    as_numbers = judgement.chosen.removesuffix(LIKE_KNOWN) == "bayes, 0 and 1 as numbers"
    assert (choice.recipe.binary_link == "identity") == as_numbers
    assert choice.calibration is not None
    assert bool((choice.calibration.factors == 1).all())  # binary values have probabilities, not intervals


def test_only_a_table_of_nothing_but_binary_features_is_taken_as_numbers() -> None:
    binary, mixed = synthetic_diagnoses(30, 6), synthetic_mixed(30, 9)
    assert modelled_table(binary, "logistic") is binary
    assert modelled_table(mixed, "identity") is mixed
    numbers = modelled_table(binary, "identity")
    assert {str(kind) for kind in numbers.kinds} == {"rating:0:1"}
    assert torch.equal(numbers.cells().values, binary.cells().values)
    assert numbers.features == binary.features


# -- The shares of heads like known ones


def test_smooth_shares_are_the_weighted_least_squares_written_out() -> None:
    random = np.random.default_rng(3)
    shots, pairs, expected = 5, [], []
    for _ in range(shots):
        errors = [[list(random.normal(size=4)) for _ in range(6)] for _ in range(2)]
        pairs.append((outcome(list(range(6)), errors[0]), outcome(list(range(6)), errors[1])))
    products, weights = np.zeros(shots), np.zeros(shots)
    for k, (alike, plain) in enumerate(pairs):
        difference = (alike.predictive.mean - plain.predictive.mean).double().numpy()
        error = (plain.truth - plain.predictive.mean).double().numpy()
        weights[k] = difference @ difference
        products[k] = 6 / (6 + 10) * (difference @ error)  # shrunk to 0 by 6 features
    for k in range(shots):
        near = {k: 1.0} if k == 0 else {k - 1: 0.5 if k > 1 else 0.0, k: 1.0, k + 1: 0.5}
        near = {other: share for other, share in near.items() if other < shots}
        share = sum(w * products[i] for i, w in near.items()) / sum(w * weights[i] for i, w in near.items())
        expected.append(min(max(share, 0.0), 1.0))
    np.testing.assert_allclose(smooth_shares(pairs), expected, rtol=1e-5)
    assert 0 < max(expected) < 1


# -- The shares of a blend, measured on features held back


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0.1, 3)), min_size=1, max_size=9))
def test_shares_that_do_not_rise_are_the_nearest(pairs: list[tuple[float, float]]) -> None:
    values, weights = np.array(pairs).T
    expected = IsotonicRegression(increasing=False).fit_transform(
        np.arange(len(values)), values, sample_weight=weights
    )
    found = isotonic_decreasing(torch.from_numpy(values), torch.from_numpy(weights))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def prepared_for(table: Table) -> AdapterTrainer:
    features = np.arange(len(table.features))
    return prepare(
        table, features, features, Recipe(metatraining={"epochs": 3}), True,
        reporter=Reporter(quiet=True), checkpoint=lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize("make", [lambda: ratings_table(80, 40), lambda: synthetic_diagnoses(80, 30)])
def test_the_blend_predicts_as_its_outcomes_say(make: Callable[[], Table]) -> None:
    prepared = prepared_for(make())
    own = prepared.train(adapter_config("chn-bayes-blend"), "blend", {})
    adapter, likelihood = own.adapter, prepared.knowledge.likelihood
    assert isinstance(adapter, CHNBayes)
    blend, closed = blend_outcomes(adapter, likelihood, prepared.validation, seed=0, all_binary=False)
    shares = adapter.shares
    assert bool(((shares >= 0) & (shares <= 1)).all())
    assert bool((shares.diff() <= 1e-6).all())
    measured = predict_held_out(adapter, likelihood, prepared.validation, seed=0)
    for shots, outcome in measured.items():
        torch.testing.assert_close(
            outcome.predictive.mean, blend[shots].predictive.mean, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(outcome.predictive.std, blend[shots].predictive.std, rtol=1e-3, atol=1e-4)
        assert torch.equal(outcome.truth, closed[shots].truth)
    assert set(own.candidates) == {"bayes", "chn-bayes"}


def test_between_the_measured_shots_shares_are_interpolated() -> None:
    prepared = prepared_for(ratings_table(80, 40))
    adapter = prepared.train(adapter_config("chn-bayes-blend"), "blend", {}).adapter
    assert isinstance(adapter, CHNBayes)
    left, right, share = interpolate_shots(torch.tensor(VALIDATION_SHOTS), torch.tensor([0, 3, 1000]))
    expected = torch.lerp(adapter.shares[left], adapter.shares[right], share)
    assert torch.equal(adapter.share(torch.tensor([0, 3, 1000])), expected)
    assert float(expected[0]) == float(adapter.shares[0])
    assert float(expected[2]) == float(adapter.shares[-1])


class Wrong(CHNBayes):
    """Networks whose heads are wrong, blended with the right ones of the closed form."""

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        heads = super().adapt(batch, states)
        if float(self.shares[0]) == 1.0:  # networks alone
            heads.bias.add_(5.0)
        return heads


def test_networks_that_are_wrong_get_nothing_of_the_blend() -> None:
    """But for the doubt that few features leave: 4 of them are held back."""
    prepared = prepared_for(ratings_table(60, 40))
    adapter = prepared.train(adapter_config("chn-bayes-blend"), "blend", {}).adapter
    adapter.__class__ = Wrong
    assert isinstance(adapter, Wrong)
    blend_outcomes(adapter, prepared.knowledge.likelihood, prepared.validation, seed=0, all_binary=False)
    assert float(adapter.shares.max()) <= 0.5 * 10 / (10 + 4) + 0.05


def outcome_with_local(strengths: tuple[float, float], seed: int, features: int = 40) -> Outcome:
    """Values that differ from their predictions by noise and by two local parts at these strengths."""
    draw = torch.Generator().manual_seed(seed)
    local = torch.randn(features * 30, 2, generator=draw)
    noise = torch.full((len(local),), 0.25)
    truth = 0.5 * (local @ torch.tensor(strengths) + torch.randn(len(local), generator=draw))
    kinds = torch.full((len(local),), int(KindType.RATING))
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    predictive = Predictive(torch.zeros_like(truth), torch.zeros_like(truth), noise, kinds, likelihood)
    feature = torch.arange(features).repeat_interleave(30)
    return Outcome(predictive, truth, feature, torch.zeros_like(truth, dtype=torch.bool), None, local)


def test_local_strengths_are_those_of_the_held_out_features() -> None:
    fits = fit_local_strengths(
        CandidateOutcomes({0: outcome_with_local((0.5, 0.8), 0), 8: outcome_with_local((0.3, 1.0), 1)})
    )
    assert fits is not None
    strengths, outcomes = fits
    shrunk = 40 / 50
    assert strengths.similar[0] == pytest.approx(0.5 * shrunk, abs=0.05)
    assert strengths.similar[4:] == (strengths.similar[4],) * 5  # more shots than any that was judged
    assert strengths.similar[4] == pytest.approx(0.3 * shrunk, abs=0.05)
    assert strengths.chosen == (1.0,) * 9
    moved = outcomes.outcomes[8]
    assert moved.local is not None
    expected = 0.5 * (moved.local @ torch.tensor([strengths.similar[4], 1.0]))
    torch.testing.assert_close(moved.predictive.mean, expected, atol=1e-5, rtol=0)


def test_a_local_part_that_does_not_help_is_left_out() -> None:
    useless = [CandidateOutcomes({0: outcome_with_local((0.0, 0.0), seed)}) for seed in range(20)]
    found = [fit_local_strengths(candidate) is not None for candidate in useless]
    assert sum(found) <= 3
    harmful = CandidateOutcomes({0: outcome_with_local((-0.5, -0.5), 0)})
    assert fit_local_strengths(harmful) is None
    plain = CandidateOutcomes({0: replace(outcome_with_local((0.5, 0.5), 0), local=None)})
    assert fit_local_strengths(plain) is None


def test_a_local_part_that_helps_at_some_shots_has_none_at_others() -> None:
    useless = outcome_with_local((-0.1, 0.4), 1)
    fits = fit_local_strengths(CandidateOutcomes({0: outcome_with_local((0.8, 1.0), 0), 1: useless}))
    assert fits is not None
    assert fits[0].at(1) == (0.0, 0.0)
    assert fits[0].at(0)[0] > 0.5
    assert fits[0].at(0)[1] == 1.0


def test_chosen_features_may_be_worse_by_chance_but_similar_ones_must_win() -> None:
    by_seed = [
        fit_local_strengths(CandidateOutcomes({0: outcome_with_local((0.0, 0.8), s)})) for s in range(12)
    ]
    assert all(fits is not None and fits[0].chosen[0] == 1.0 for fits in by_seed)
    assert sum(fits is not None and fits[0].similar[0] > 0 for fits in by_seed) <= 3
    few = fit_local_strengths(CandidateOutcomes({0: outcome_with_local((0.8, 0.8), 0, features=6)}))
    assert few is not None
    assert few[0].at(0) == (0.0, 1.0)


def rows_with_local(strengths: dict[int, float], seed: int) -> RowOutcomes:
    """Outcomes at 40 rows, by number of observations; the local part explains these shares of residuals."""
    parts = []
    for turn, strength in enumerate(strengths.values()):
        outcome = outcome_with_local((strength, 0.0), seed + turn)
        assert outcome.local is not None
        parts.append(replace(outcome, local=outcome.local[:, :1]))
    observed = torch.cat([torch.full_like(part.feature, k) for k, part in zip(strengths, parts, strict=True)])
    return RowOutcomes(concatenate_outcomes(parts), observed, observed)


def test_local_parts_of_known_features_must_lower_the_error_at_rows() -> None:
    strengths, rows = fit_known_strengths(rows_with_local({1: 0.4, 4: 1.0, 8: 1.0}, 0))
    assert strengths == (0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    before = rows_with_local({1: 0.4, 4: 1.0, 8: 1.0}, 0).outcome
    moved = rows.outcome.predictive.mean - before.predictive.mean
    assert before.local is not None
    expected = torch.where(rows.observed >= 4, 0.5 * before.local[:, 0], 0.0)
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=0)
    found = [any(fit_known_strengths(rows_with_local({4: 0.0}, seed))[0]) for seed in range(20)]
    assert sum(found) <= 1
    plain = rows_with_local({4: 1.0}, 0)
    plain = replace(plain, outcome=replace(plain.outcome, local=None))
    assert fit_known_strengths(plain) == ((0.0,) * 9, plain)


# -- clicks ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans(), st.integers(1, 4)), min_size=1)
)
def test_the_ranking_of_sampled_zeros_is_that_of_all(cells: list[tuple[int, int, bool, int]]) -> None:
    cells = [*cells, *((number, 3, True, 1) for number in range(3))]
    lists, scores, relevant, weights = (torch.tensor(part) for part in zip(*cells, strict=True))
    found = weighted_ndcg(scores.float(), relevant.float(), weights.float(), lists)
    for number in range(3):
        of = [(score, wanted, weight) for line, score, wanted, weight in cells if line == number]
        assert float(found[number]) == pytest.approx(slow_ndcg(*map(list, zip(*of, strict=True))))


def test_the_targets_of_clicks_are_all_rows() -> None:
    table = synthetic_clicks(60, 20, density=0.3)
    batch = feature_batch(table)
    cells = batch.cells
    first = torch.arange(len(cells.index)) - cells.indptr[cells.lines] < 2
    context = batch.observing(cells.keep(first))
    targets = add_zeros(cells.keep(~first), context, seed=0, rows=100)
    for line in range(len(batch)):
        of = targets.lines == line
        rows, clicks = targets.index[of], targets.values[of] == 1
        seen = set(context.cells.index[context.cells.lines == line].tolist())
        clicked = set(cells.index[cells.lines == line].tolist())
        assert set(rows[clicks].tolist()) == clicked - seen
        assert (
            set(rows[~clicks].tolist()) == set(range(len(table.rows))) - clicked
        )  # few rows: none is left out
        assert float(targets.weights[of][~clicks].sum()) == pytest.approx(100 - len(clicked))


def test_clicks_are_judged_by_their_ranking() -> None:
    table = synthetic_clicks(120, 60, density=0.2)
    features = np.arange(60)
    trained, _, judgement = train_best(
        table, features, Recipe(), reporter=Reporter(quiet=True), checkpoint=nowhere
    )
    assert judgement.features > 0
    errors = judgement.candidates[judgement.chosen].error
    assert all(0 < error < 1 for error in errors)
    chance = np.mean([1 / np.log2(2 + rank) for rank in range(120)]) * 24  # 24 clicks in a random order
    assert errors[0] < 1 - chance / sum(1 / np.log2(2 + rank) for rank in range(24))
    assert bool((trained.adapters["adapter"].calibration.click_slopes != 1).any())


@pytest.mark.parametrize(
    "features", [12, 13, 61, 999, 1000, 1100, 1177, 10_000, 10_400, 15_000, 19_999, 20_000, 20_399, 20_401]
)
def test_a_fold_has_the_settings_of_the_delivered_model(features: int, limits: Limits) -> None:
    """Also where the defaults for the fewer features of the fold are others."""
    numbers = np.arange(features)
    names = [str(number) for number in numbers]
    rows = [str(number % 5) for number in numbers]
    table = Table.read(
        pa.table({"row": rows, "feature": names, "value": 1.0 + numbers % 5}), kinds="rating:1:5"
    )
    trained: list[tuple[int, Recipe]] = []

    class Stopped(Exception):
        pass

    def record(
        _: Table, train_features: np.ndarray, __: np.ndarray, recipe: Recipe, *___: object, **____: object
    ) -> None:
        trained.append((len(train_features), recipe))
        raise Stopped

    limits(train_candidate=record)
    judge = Judge(table, numbers, QUIET, nowhere)
    with pytest.raises(Stopped):
        judge.choose(Recipe(), networks=features >= 1000)
    [(fewer, judged)] = trained
    assert fewer < features
    kinds = torch.from_numpy(table.kinds.types)
    assert judged.backbone.resolved(kinds[:fewer]) == resolve_backbone(Recipe().backbone, table)
    found = {**default_meta_training(fewer), **judged.metatraining.model_dump(exclude_unset=True)}
    assert found == dict(default_meta_training(features))


def test_the_judged_backbones_have_the_size_of_the_delivered_one(limits: Limits) -> None:
    """51 features would have 17 factors and a signature of 12 numbers, 60 have 20 and 15."""
    sizes = []

    def build(config: FactorisationConfig, *given: torch.Tensor) -> object:
        backbone = build_backbone(config, *given)
        sizes.append((len(given[0]), backbone.config.latent, backbone.config.signature))  # type: ignore[attr-defined]
        return backbone

    limits(build_backbone=build)
    train_best(ratings_table(40, 60), np.arange(60), Recipe(), reporter=QUIET, checkpoint=nowhere)
    assert sizes[-1] == (60, 20, 15)
    assert len(sizes) > 1
    assert {size[1:] for size in sizes} == {(20, 15)}
