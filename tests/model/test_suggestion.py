"""Which rows to observe next: against brute force, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.model.conftest import CLOSED, ratings_table
from tests.oracles.design import best_rows

from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.types import Heads, RowStates
from headstart.errors import InputError, UnknownNameError
from headstart.linalg.packed import pack
from headstart.model import Headstart
from headstart.model.suggestion import HeadWeights, choose_rows, greedy_design
from headstart.table import Table
from headstart.table.kinds import KindType

Fresh = Callable[..., Headstart]
ROWS, WIDTH = 12, 3
IDENTITY = Likelihood(LikelihoodConfig(rating_link="identity"))


def world(seed: int, noisy: bool = True) -> tuple[Heads, RowStates]:
    """One head that is not sure of itself, and rows of different noise."""
    random = np.random.default_rng(seed)
    some = random.normal(size=(WIDTH + 1, WIDTH + 1))
    states = RowStates(
        torch.zeros(ROWS, 1),
        torch.ones(ROWS, 1),
        torch.from_numpy(random.normal(size=(ROWS, WIDTH))).float(),
        torch.from_numpy(random.uniform(0.3, 3, ROWS)).float() if noisy else None,
    )
    spread = torch.from_numpy(some @ some.T / 2).float()
    weight = torch.from_numpy(random.normal(size=(1, WIDTH))).float()
    return Heads(weight, torch.tensor([0.3]), pack(spread[None]), torch.tensor([0.5])), states


@pytest.mark.parametrize("kind", [KindType.RATING, KindType.REAL, KindType.BINARY])
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_chosen_as_by_brute_force(kind: int, seed: int) -> None:
    heads, states = world(seed, noisy=seed % 2 == 0)
    among = [0, 2, 3, 5, 7, 8, 11]
    chosen, gains = choose_rows(heads, states, torch.tensor(among), kind, 5, IDENTITY)
    found = [among[i] for i in chosen]
    assert gains == sorted(gains, reverse=True)
    assert found == best_rows(heads, states, among, kind, 5)
    assert choose_rows(heads, states, torch.tensor(among), kind, 99, IDENTITY)[0][:5] == chosen
    assert choose_rows(heads, states, torch.zeros(0, dtype=torch.int64), kind, 3, IDENTITY) == (
        [],
        [],
    )


@pytest.mark.parametrize("kind", [KindType.RATING, KindType.BINARY])
def test_of_two_rows_alike_not_both_come_first(kind: int) -> None:
    """The best row and its twin: apart they tell the same, so the second waits."""
    heads, states = world(1, noisy=False)
    heads = Heads(heads.weight, heads.bias, heads.covariance, torch.tensor([0.01]))
    if kind == KindType.BINARY:  # an answer weighs more where much is unknown
        heads = Heads(0 * heads.weight, 0 * heads.bias, 100 * heads.covariance, heads.noise)
    every = torch.arange(ROWS)
    best = choose_rows(heads, states, every, kind, 1, IDENTITY)[0][0]
    twin = (best + 1) % ROWS
    activation = states.activation.clone()
    activation[twin] = activation[best]
    alike = RowStates(states.code, states.code_std, activation)
    chosen, _ = choose_rows(heads, alike, every, kind, 2, IDENTITY)
    assert not {best, twin} <= set(chosen)


def test_suggestions_are_rows_not_observed_yet_and_change_nothing(fresh: Fresh) -> None:
    model = fresh("factorisation", "chn-bayes")
    model.add_feature("new", observations={"u1": 5, "u2": 1})
    before, shots = model.predict(), {name: model.feature(name).shots for name in model.features}
    found = model.suggest("new")
    assert len(found) == len(set(found)) == 10
    assert not {"u1", "u2"} & set(found)
    assert model.suggest("new", n=3) == found[:3]
    assert model.suggest("new", n=1000)[:10] == found
    assert len(model.suggest("new", n=1000)) == len(model.rows) - 2
    some = ["u2", "u9", "u7", "u7", "u30"]
    assert set(model.suggest("new", rows=some)) == {"u9", "u7", "u30"}
    assert model.suggest("new", rows=["u1"]) == []
    assert model.suggest("new", rows="u5") == ["u5"]
    seen = set(model.feature("f3").rows)  # the table's own features too
    assert not seen & set(model.suggest("f3", n=1000))
    after = model.predict()
    assert np.array_equal(before.mean, after.mean)
    assert np.array_equal(before.std, after.std)
    assert shots == {name: model.feature(name).shots for name in model.features}
    model.observe_feature("new", {found[0]: 3})
    assert found[0] not in model.suggest("new", n=1000)


def test_observing_what_is_suggested_leaves_less_unknown_than_other_rows(fresh: Fresh) -> None:
    spreads = []
    for which in (lambda every: every[:5], lambda every: every[-5:]):
        model = fresh("factorisation", "bayes")
        model.add_feature("new")
        model.observe_feature("new", dict.fromkeys(which(model.suggest("new", n=1000)), 3))
        spreads.append(float(model.predict(features=["new"]).std.mean()))
    assert spreads[0] < spreads[1]


def test_binary_features_get_suggestions() -> None:
    table = ratings_table()
    frame = pa.table(
        {
            "row": [table.rows[i] for i in table.row_index],
            "feature": [table.features[j] for j in table.feature_index],
            "value": (table.values > 3).astype(float),
        }
    )
    model = Headstart(**CLOSED).fit(Table.read(frame, kinds="binary"))
    model.add_feature("new", observations={"u1": 1})
    found = model.suggest("new", n=4)
    assert len(set(found)) == 4
    assert "u1" not in found
    model.observe_feature("new", dict.fromkeys(found, 1))
    assert ((model.predict(features=["new"]).mean > 0) & (model.predict(features=["new"]).mean < 1)).all()


def test_bad_questions_are_refused(fresh: Fresh) -> None:
    model = fresh("factorisation", "chn-bayes")
    for n in (0, -1, True, 2.5, "3", None):
        with pytest.raises(InputError, match="whole number n from 1 up"):
            model.suggest("f1", n=n)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'"):
        model.suggest("f99")
    with pytest.raises(UnknownNameError, match="unknown row 'u99'"):
        model.suggest("f1", rows=["u1", "u99"])
    with pytest.raises(InputError, match="adapter='bayes'"):
        fresh("pvae", "chn").suggest("f1")
    with pytest.raises(InputError, match="adapter='bayes'"):
        fresh("factorisation", "knn-5").suggest("f1")


# -- Greedy choices with kept forms


SIZE = 5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_bars", [False, True])
def test_many_choices_are_those_of_computing_all_anew(seed: int, with_bars: bool) -> None:
    """More choices than forms are kept for without being computed anew."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(150, SIZE)).astype(np.float32)
    noise = random.uniform(0.5, 2, 150)
    some = random.normal(size=(2, SIZE, SIZE))
    start, usual = some @ some.transpose(0, 2, 1)
    barred = random.random(150) < 0.3 if with_bars else np.zeros(150, dtype=bool)

    covariance, left, chosen, gains = start.copy(), ~barred, [], []
    exact = vectors.astype(float)
    for _ in range(int(left.sum())):
        products = exact @ covariance
        gain = ((products @ usual) * products).sum(1) / (noise + (products * exact).sum(1))
        best = int(np.where(left, gain, -np.inf).argmax())
        chosen.append(best)
        gains.append(gain[best])
        left[best] = False
        step = products[best]
        covariance = covariance - np.outer(step, step) / (noise[best] + step @ exact[best])

    mask = torch.from_numpy(barred) if with_bars else None
    given = HeadWeights(torch.from_numpy(vectors)), torch.from_numpy(noise), torch.from_numpy(start)
    found, told = greedy_design(*given, torch.from_numpy(usual), 999, mask)
    assert found == chosen
    np.testing.assert_allclose(told, gains, rtol=1e-9)
    few, _ = greedy_design(*given, torch.from_numpy(usual), 3, mask)
    assert few == chosen[:3]


def test_there_may_be_nothing_to_choose() -> None:
    eye = torch.eye(SIZE, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.float64)
    assert greedy_design(HeadWeights(torch.zeros(0, SIZE)), none, eye, eye, 3) == ([], [])
    barred = torch.ones(4, dtype=torch.bool)
    assert greedy_design(HeadWeights(torch.ones(4, SIZE)), torch.ones(4).double(), eye, eye, 3, barred) == (
        [],
        [],
    )


@pytest.mark.parametrize("unit", [1e-30, 1e-15, 1e15, 1e30])
def test_choices_do_not_depend_on_the_unit_of_variances(unit: float) -> None:
    """The forms are squares of variances, which would leave the range of single precision."""
    random = np.random.default_rng(0)
    weights, noise = HeadWeights(torch.from_numpy(random.normal(size=(30, SIZE))).float()), torch.ones(30)
    root, eye = torch.from_numpy(random.normal(size=(SIZE, SIZE))), torch.eye(SIZE, dtype=torch.float64)
    chosen, gains = greedy_design(weights, noise.double(), root @ root.T, eye, 9)
    found, told = greedy_design(weights, unit * noise.double(), unit * (root @ root.T), eye, 9)
    assert found == chosen
    np.testing.assert_allclose(told, np.array(gains) * unit, rtol=1e-9)
