from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.types import FeatureBatch, Heads
from headstart.errors import InputError
from headstart.evaluate.kshot import KShotTest, check_shots
from headstart.evaluate.scoring import score_adapter
from headstart.linalg.packed import pack
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

SHOTS = (0, 1, 2, 4, 8)


def make(worlds):
    return KShotTest(*worlds.held_out(), SHOTS, seed=0)


def as_dicts(cells: Cells) -> list[dict[int, float]]:
    return [
        {int(i): float(v) for i, v in zip(cells.index[a:b], cells.values[a:b], strict=True)}
        for a, b in zip(cells.indptr[:-1], cells.indptr[1:], strict=True)
    ]


def test_every_feature_has_one_order_context_first_then_targets(worlds):
    batch, _ = worlds.held_out()
    test = make(worlds)
    observed = as_dicts(batch.cells.take(test.features))
    targets = as_dicts(test.targets)
    before: list[dict[int, float]] = [{} for _ in observed]
    for k in SHOTS:
        contexts = as_dicts(test.context(k).cells)
        for every, context, target, smaller in zip(observed, contexts, targets, before, strict=True):
            assert len(context) == k
            assert smaller.items() <= context.items() <= every.items()
            assert not context.keys() & target.keys()
        before = contexts
    for every, context, target in zip(observed, before, targets, strict=True):
        assert {**context, **target} == every


def test_features_with_nothing_left_to_test_are_left_out_and_counted(worlds):
    batch, _ = worlds.held_out()
    test = make(worlds)
    expected = [j for j, n in enumerate(batch.shots.tolist()) if n > 8]
    assert test.features.tolist() == expected
    assert test.left_out == len(batch) - len(expected) > 0
    assert bool((test.targets.counts >= 1).all())


def test_the_order_depends_on_the_seed_and_not_on_the_largest_shots(worlds):
    batch, kinds = worlds.held_out()
    few = KShotTest(batch, kinds, [1, 4], seed=3)
    many = KShotTest(batch, kinds, [4, 8], seed=3)
    shared = [few.features.tolist().index(j) for j in many.features.tolist()]
    assert as_dicts(few.context(4).cells.take(torch.tensor(shared))) == as_dicts(many.context(4).cells)
    other = KShotTest(batch, kinds, [4, 8], seed=4)
    assert as_dicts(other.context(4).cells) != as_dicts(many.context(4).cells)


def test_predictions_are_link_of_head_times_activation_in_data_units(worlds):
    _, kinds = worlds.held_out()
    test, world = make(worlds), worlds.knowledge()
    heads = worlds.Ridge(worlds.RidgeConfig(), world).adapt(test.context(4), world.states)
    predictive = test.predict(heads, world.states, world.likelihood)
    assert not predictive.variance.any()  # such heads come without a covariance
    got, _ = test.to_values(predictive.mean, predictive.std)
    place = 0
    for line, feature in enumerate(test.features.tolist()):
        kind = kinds[feature]
        for row in as_dicts(test.targets)[line]:
            logit = float(world.states.activation[row] @ heads.weight[line] + heads.bias[line])
            mean = logit if kind.name == "real" else 1 / (1 + np.exp(-logit))
            assert float(got[place]) == pytest.approx(kind.offset + kind.span * mean, rel=1e-5)
            place += 1
    assert place == len(got)


@pytest.mark.parametrize("k", [0, 4])
def test_scores_equal_a_loop_over_features_and_cells(worlds, k):
    """Pool the pairs of a 1 and a 0 over all binary features, and the squared errors over all others."""
    test, world = KShotTest(*worlds.held_out(12), SHOTS, seed=0), worlds.knowledge()
    runs = score_adapter("ridge", worlds.Ridge(worlds.RidgeConfig(), world), world, test, None, {})
    found = {run.metric: run.value for run in runs if run.shots == k}
    activation = world.states.activation.numpy()
    context, targets = as_dicts(test.context(k).cells), as_dicts(test.targets)
    pooled, squares, areas, errors = {0.0: [], 1.0: []}, [], [], []
    for line, kind in enumerate(test.modelled.tolist()):
        weight, bias = np.zeros(worlds.WIDTH), 0.0
        for row, value in context[line].items():
            weight += (value - 0.5) * activation[row] / len(context[line])
            bias += (value - 0.5) / len(context[line])
        own, scores = [], {0.0: [], 1.0: []}
        for row, value in targets[line].items():
            output = weight @ activation[row] + bias
            linked = 1 / (1 + np.exp(-output))
            if kind == KindType.BINARY:
                scores[value].append(linked)
                pooled[value].append(linked)
            else:
                own.append((4 * (linked - value) if kind == KindType.RATING else 2 * (output - value)) ** 2)
        if own:
            squares, errors = squares + own, [*errors, np.sqrt(np.mean(own))]
        elif scores[0.0] and scores[1.0]:  # a feature of one class has no area
            areas.append(share_of_pairs(scores))
    assert len(areas) > 1
    assert found["auroc"] == pytest.approx(share_of_pairs(pooled), abs=1e-5)
    assert found["auroc_per_feature"] == pytest.approx(np.mean(areas), abs=1e-5)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)
    assert found["rmse_per_feature"] == pytest.approx(np.mean(errors), rel=1e-5)


def share_of_pairs(scores):
    """Return the share of pairs of a 1 and a 0 in which the 1 has the higher score; ties count half."""
    return np.mean([(one > zero) + 0.5 * (one == zero) for one in scores[1.0] for zero in scores[0.0]])


def test_truth_and_standard_deviation_are_in_data_units(worlds):
    test = make(worlds)
    kinds = test.kinds.numpy()
    ratings = kinds == KindType.RATING
    assert bool(((test.truth[ratings] >= 1) & (test.truth[ratings] <= 5)).all())
    half = torch.full((len(test.truth),), 0.5)
    _, std = test.to_values(half, half)
    assert set(std[ratings].tolist()) == {2.0}
    assert set(std[kinds == KindType.BINARY].tolist()) == {0.5}
    assert set(std[kinds == KindType.REAL].tolist()) == {1.0}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), k=st.sampled_from(SHOTS))
def test_nothing_outside_the_context_reaches_a_prediction(worlds, seed, k):
    """Changing any target, or any value a context does not show, changes no prediction by a bit."""
    batch, kinds = worlds.held_out(seed=seed)
    if int(batch.shots.max()) <= max(SHOTS):
        return
    world = worlds.knowledge(seed)
    ridge = worlds.Ridge(worlds.RidgeConfig(), world)
    test = KShotTest(batch, kinds, SHOTS, seed)
    shown = {
        (int(test.features[line]), row)
        for line, context in enumerate(as_dicts(test.context(k).cells))
        for row in context
    }
    cells = batch.cells
    secret = torch.tensor(
        [(f, r) not in shown for f, r in zip(cells.lines.tolist(), cells.index.tolist(), strict=True)]
    )
    changed = torch.where(secret, 1 - cells.values + 100.0, cells.values)
    forged = FeatureBatch(Cells(cells.indptr, cells.index, changed, cells.width), batch.metadata, batch.kinds)
    again = KShotTest(forged, kinds, SHOTS, seed)
    assert not np.array_equal(test.truth, again.truth)
    first, second = (
        t.predict(ridge.adapt(t.context(k), world.states), world.states, world.likelihood)
        for t in (test, again)
    )
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.std, second.std)


def test_many_rows_are_predicted_part_by_part(worlds, limits):
    test, world = make(worlds), worlds.knowledge()
    heads = worlds.Ridge(worlds.RidgeConfig(), world).adapt(test.context(8), world.states)
    whole = test.predict(heads, world.states, world.likelihood)
    limits(predicted_cells_per_block=1)
    parts = test.predict(heads, world.states, world.likelihood)
    assert torch.allclose(parts.mean, whole.mean)
    assert torch.allclose(parts.std, whole.std)


@pytest.mark.parametrize("shots", [[], [-1, 2], [1, 1]])
def test_bad_shots_are_refused(shots):
    with pytest.raises(InputError, match="different whole numbers"):
        check_shots(shots)


def test_too_many_shots_say_what_the_largest_feature_has(worlds):
    batch, kinds = worlds.held_out()
    with pytest.raises(InputError, match=f"has {int(batch.shots.max())} observations"):
        KShotTest(batch, kinds, [0, 500], 0)
    with pytest.raises(InputError, match="contexts of 0 to 8 shots; got 9"):
        make(worlds).context(9)


def test_heads_that_know_how_sure_they_are_say_it_at_every_target(worlds):
    _, kinds = worlds.held_out()
    test, world = make(worlds), worlds.knowledge()
    plain = worlds.Ridge(worlds.RidgeConfig(), world).adapt(test.context(4), world.states)
    generator = torch.Generator().manual_seed(0)
    some = torch.randn(len(plain), worlds.WIDTH + 1, worlds.WIDTH + 1, generator=generator)
    spread, noise = some @ some.mT, torch.rand(len(plain), generator=generator) + 0.1
    heads = Heads(plain.weight, plain.bias, pack(spread), noise)
    own = torch.rand(worlds.ROWS, generator=generator) + 0.5
    states = replace(world.states, noise=own)
    predictive = test.predict(heads, states, world.likelihood)
    (mean, _), std = test.to_values(predictive.mean, predictive.std), predictive.std
    place = 0
    for line in range(len(test)):
        kind_type = test.kinds[test.lines == line][0]
        for row in as_dicts(test.targets)[line]:
            a = torch.cat([states.activation[row], torch.ones(1)])
            logit = heads.weight[line] @ a[:-1] + heads.bias[line]
            expected = world.likelihood.predictive(
                logit, a @ spread[line] @ a, noise[line] * own[row], kind_type
            )
            assert float(std[place]) == pytest.approx(float(expected[1].sqrt()), rel=1e-4)
            kind = kinds[int(test.features[line])]
            assert float(mean[place]) == pytest.approx(kind.offset + kind.span * float(expected[0]), rel=1e-4)
            place += 1
