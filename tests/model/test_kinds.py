"""Every kind keeps the same promises: distributions, saved models, order of contexts, other features."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.oracles import levels as levels_oracle
from tests.oracles.margins import values_of

from headstart import Headstart, Kind, Prediction, Table
from headstart.errors import InputError, UnknownNameError
from headstart.model.cell_predictions import predict_one_cell, predict_pairs
from headstart.model.prediction import fewest_levels, level_ratios
from headstart.table import Kinds, Names
from headstart.table.margins import likely_shift, normal_scores

ROWS, FEATURES = 60, 8
NAMES = [f"u{i:02}" for i in range(ROWS)]

# A kind with the answers that it makes of a standard normal number.
ANSWERS: dict[str, Any] = {
    "binary": lambda z: (z > 0).astype(float),
    "binary:no,yes": lambda z: np.array(["no", "yes"])[(z > 0).astype(int)],
    "rating:1:5": lambda z: np.clip(np.round(z + 3), 1, 5),
    "real": lambda z: 10 + 3 * z,
    "count": lambda z: np.floor(np.exp(1.5 * z + 2)),
    "amount": lambda z: np.exp(z),
    "ordinal:never,sometimes,often": lambda z: np.array(["never", "sometimes", "often"])[
        np.digitize(z, [-0.5, 0.8])
    ],
    "category:A,B,C": lambda z: np.array(["B", "A", "C"])[np.digitize(z, [-0.5, 0.5])],
}


@pytest.fixture(scope="module", params=list(ANSWERS))
def case(request: pytest.FixtureRequest) -> tuple[Headstart, str, dict[str, Any]]:
    """Return a model of one kind, the kind, and answers to a new feature."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(ROWS, 1)) * rng.normal(1, 0.3, FEATURES) + 0.6 * rng.normal(size=(ROWS, FEATURES))
    answers = ANSWERS[request.param](z)
    frame = pd.DataFrame(
        answers, index=pd.Index(NAMES, name="row"), columns=[f"f{j}" for j in range(FEATURES)]
    )
    frame = frame.astype(object).mask(rng.random(frame.shape) < 0.3)
    table = Table.read(frame.reset_index(), row="row", kinds=request.param, quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    new = dict(zip(NAMES[:6], ANSWERS[request.param](np.linspace(-1.5, 1.5, 6)).tolist(), strict=True))
    model.add_feature("new", observations=new)
    return model, request.param, new


def test_answers_are_kept_as_given(case: tuple[Headstart, str, dict[str, Any]]) -> None:
    model, _, new = case
    kept = model.feature("new").observations
    assert set(kept) == set(new)
    for row, value in new.items():
        assert kept[row] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9))
        assert model.row(row).observations["new"] == kept[row]


def test_saved_models_predict_the_same(case: tuple[Headstart, str, dict[str, Any]], tmp_path: Path) -> None:
    model, _, new = case
    model.save(tmp_path / "m")
    loaded = Headstart.load(tmp_path / "m", verify=False)
    expected = model.predict()
    for found in (Headstart.load(tmp_path / "m").predict(), loaded.predict()):
        assert_equal(found, expected)
        np.testing.assert_array_equal(found.interval()[1], expected.interval()[1])
    with Headstart.updating(tmp_path / "m") as changed:
        changed.add_feature("other", observations=new)
        changed.observe([(NAMES[7], "other", new[NAMES[0]])])
    found = Headstart.load(tmp_path / "m")
    assert_equal(found.predict(), changed.predict())
    assert found.feature("other").observations == changed.feature("other").observations


def test_the_order_of_a_context_is_irrelevant_and_other_features_stay(
    case: tuple[Headstart, str, dict[str, Any]], tmp_path: Path
) -> None:
    model, kind, new = case
    model.save(tmp_path / "m")
    other = Headstart.load(tmp_path / "m")
    before = other.predict()
    other.add_feature("again", observations=dict(reversed(new.items())))
    found = other.predict(None, ["again"])
    mine = before.take_features(before.features.positions(["new"]))
    assert_equal(found, mine)
    assert_equal(other.predict(None, list(before.features)), before)
    other.observe_feature("again", {NAMES[9]: new[NAMES[0]]})
    assert_equal(other.predict(None, list(before.features)), before)
    other.remove_feature("again")
    assert "again" not in other.features, kind


def assert_equal(one: Prediction, other: Prediction) -> None:
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.chances.keys() == other.chances.keys()
    for position, chances in one.chances.items():
        np.testing.assert_array_equal(chances, other.chances[position])


def test_a_table_of_the_model_fits_again(case: tuple[Headstart, str, dict[str, Any]]) -> None:
    model, _, new = case
    table = model.table()
    again = Headstart(adapter="bayes", quiet=True).fit(table)
    assert again.features == model.features
    kept = again.feature("new").observations
    for row, value in new.items():
        assert kept[row] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5))


@pytest.mark.parametrize("reach", [None, [1.2, 1.1, 1.0, 1.05, 1.3]])
@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("rating:1:5", 3.2, 0.8),
        ("real:3:2", 2.0, 0.7),
        ("count:0.5:2:1", 1.7, 0.8),
        ("count:1:2:1", 0.2, 0.5),
        ("amount:0:2:1", 2.0, 0.6),
        ("amount:0.3:2:1", -0.5, 0.7),
        ("ordinal:a,b,c,d:0,0.2,0.7,1", 0.4, 0.3),
        ("ordinal:1,3,9:0,0.5,1", 0.9, 0.2),
    ],
)
def test_distributions_agree_with_draws(
    text: str, mean: float, std: float, reach: list[float] | None
) -> None:
    kind = Kind.parse(text)
    assert Kind.parse(str(kind)) == kind
    factors = None if reach is None else np.array([reach])
    numbers = np.full((1, 1), mean), np.full((1, 1), std)
    found = Prediction(Names(["u"], "row"), Names(["f"], "feature"), Kinds([kind]), *numbers, factors)
    drawn = found.sample(20_000)[:, 0, 0]
    assert np.isfinite(drawn).all()
    assert kind.margin.possible(drawn).all()
    for quantile in (0.05, 0.3, 0.5, 0.9):
        value = float(found.quantile(quantile)[0, 0])
        assert (drawn <= value + 1e-9).mean() >= quantile - 0.015
        assert (drawn < value - 1e-9).mean() <= quantile + 0.015
        above = float(found.probability_above(value)[0, 0])
        assert above == pytest.approx((drawn > value).mean(), abs=0.015)
    if reach is None and text != "rating:1:5":  # the mean of a rating is not clipped at its limits
        exact = values_of(kind, mean, std)
        tail = len(exact) // 20  # the mean of counts and amounts is that of the central 90 %
        central = exact[tail:-tail] if kind.name in ("count", "amount") else exact
        assert float(found.mean[0, 0]) == pytest.approx(central.mean(), rel=0.02)
        if "0.5:" not in text or kind.name != "amount":  # clipping at 0 is left out of the deviation
            assert float(found.std[0, 0]) == pytest.approx(exact.std(), rel=0.15)


def test_probabilities_are_shares_of_draws_and_add_up() -> None:
    kind = Kind.parse("ordinal:a,b,c,d:0,0.2,0.7,1")
    numbers = np.full((1, 1), 0.4), np.full((1, 1), 0.3)
    found = Prediction(Names(["u"], "row"), Names(["f"], "feature"), Kinds([kind]), *numbers)
    chances = found.probabilities("f")[0]
    exact = values_of(kind, 0.4, 0.3)
    np.testing.assert_allclose(chances, [(exact == level).mean() for level in (1, 2, 3, 4)], atol=1e-3)
    assert found.levels("f") == ["a", "b", "c", "d"]
    assert chances.sum() == pytest.approx(1)


def test_a_question_answered_with_the_ends_only_has_little_probability_between() -> None:
    kind, observed = Kind.rating(1, 5), np.array([1.0] * 40 + [5.0] * 40)
    numbers = np.full((1, 1), 3.0), np.full((1, 1), 2.0)
    names = Names(["u"], "row"), Names(["f"], "feature")
    plain = Prediction(*names, Kinds([kind]), *numbers).probabilities("f")[0]
    found = Prediction(*names, Kinds([kind]), *numbers, None, [observed]).probabilities("f")[0]
    assert plain[2] > 0.15
    assert found[1:4].sum() < 0.1
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(level_ratios(observed[:1], [1.5, 2.5]), 1)


def test_an_ordinal_interval_is_the_shortest_run_of_levels() -> None:
    rng = np.random.default_rng(0)
    levels = np.array([1.0, 2.0, 4.0, 5.0, 7.0])
    chances = rng.dirichlet(np.full(5, 0.5), size=50)
    for level in (0.5, 0.8, 0.9):
        low, high = fewest_levels(levels, chances, level)
        slow = [levels_oracle.fewest_levels(levels.tolist(), line, level) for line in chances.tolist()]
        assert list(zip(low.tolist(), high.tolist(), strict=True)) == slow


def test_all_ways_to_predict_an_ordinal_cell_agree(case: tuple[Headstart, str, dict[str, Any]]) -> None:
    model, kind, _ = case
    if not kind.startswith("ordinal"):
        return
    found = model.predict()
    low, high = found.interval(0.8)
    rows, features = (part.ravel() for part in np.indices(low.shape))
    pairs = predict_pairs(model.state, rows, list(found.features), features, 0.8)
    np.testing.assert_array_equal(pairs[2].reshape(low.shape), low)
    np.testing.assert_array_equal(pairs[3].reshape(low.shape), high)
    one = predict_one_cell(model.state, found.rows[3], found.features[2], 0.8)
    assert (one.low, one.high) == (low[3, 2], high[3, 2])
    for position, name in enumerate(found.features):  # the interval has the probability that it says
        chances, levels = found.probabilities(name), np.arange(1.0, 4.0)
        inside = (levels >= low[:, position, None]) & (levels <= high[:, position, None])
        assert ((chances * inside).sum(axis=1) >= 0.8 - 1e-6).all()


def test_a_category_has_its_own_levels(case: tuple[Headstart, str, dict[str, Any]]) -> None:
    model, kind, _ = case
    if kind.startswith("category"):
        with pytest.raises(InputError, match="category with its own levels"):
            model.predict().probabilities("f0", values=[0, 1])


def test_probabilities_of_a_category_add_up() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(ROWS, 1)) + 0.5 * rng.normal(size=(ROWS, FEATURES))
    frame = pd.DataFrame(ANSWERS["category:A,B,C"](z), columns=[f"f{j}" for j in range(FEATURES)])
    frame.insert(0, "row", NAMES)
    model = Headstart(adapter="bayes", quiet=True).fit(Table.read(frame, row="row", quiet=True))
    found = model.predict(NAMES[:5], ["f1"])
    assert list(found.features) == ["f1"]
    assert found.levels("f1") == ["A", "B", "C"]
    np.testing.assert_allclose(found.probabilities("f1").sum(1), 1)
    one = model.predict(NAMES[:5], ["f1=B"])
    np.testing.assert_array_equal(one.mean[:, 0], found.probabilities("f1")[:, 1])
    assert len(model.audience("f1=B", n=3, exclude_observed=False)) == 3
    model.add_feature("g", kind="category:X,Y", observations={"u01": "X"})
    np.testing.assert_allclose(model.predict(None, ["g"]).probabilities("g").sum(1), 1)
    model.rename_feature("g", "h")
    assert model.feature("h").observations == {"u01": "X"}
    with pytest.raises(InputError, match=r"the value 'D' is not one of 'A', 'B', 'C'"):
        model.observe([("u01", "f1", "D")])
    with pytest.raises(UnknownNameError, match="'f1' is a category; name one of its levels, as 'f1=A'"):
        model.audience("f1")
    with pytest.raises(InputError, match="'Z' is not one of its levels"):
        model.add_feature("i", kind="category:X,Y", levels={"Z": {}})


def test_metadata_describes_levels() -> None:
    rows = [f"u{i}" for i in range(40)]
    rng = np.random.default_rng(0)
    right = {f"q{j}": "ABC"[j % 3] for j in range(9)}
    answers = {
        name: [option if rng.random() < 0.8 else rng.choice(list("ABC")) for _ in rows]
        for name, option in right.items()
    }
    about = [(f"{name}={level}", float(level == option)) for name, option in right.items() for level in "ABC"]
    metadata = pd.DataFrame(about, columns=["feature", "right"])
    table = Table.read(pd.DataFrame({"row": rows, **answers}), row="row", metadata=metadata, quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    model.add_feature("new", levels={"A": {"right": 0}, "B": {"right": 1}, "C": {"right": 0}})
    found = model.predict(None, ["new"])
    assert found.probabilities("new").mean(0).argmax() == found.levels("new").index("B")


def test_the_levels_of_numbers_come_from_the_data() -> None:
    frame = pd.DataFrame({"row": ["a", "b", "c"], "x": [1.0, 3.0, 7.0], "y": [3.0, 7.0, 7.0]})
    table = Table.read(frame, row="row", kinds="ordinal", quiet=True)
    assert [kind.option for kind in table.kinds] == ["ordinal:1,3,7"] * 2
    assert table.observations_of("x") == {"a": 1.0, "b": 3.0, "c": 7.0}


def test_labels_decide_kinds() -> None:
    frame = pd.DataFrame(
        {
            "row": ["a", "b", "c", "d"],
            "smokes": ["no", "yes", "yes", "no"],
            "often": pd.Categorical(["low", "high", "low", "mid"], ["low", "mid", "high"], ordered=True),
            "colour": ["red", "blue", "green", "red"],
        }
    )
    table = Table.read(frame, row="row", quiet=True)
    assert [kind.option for kind in table.kinds] == [
        "binary:no,yes", "ordinal:low,mid,high", "category", "category", "category",
    ]  # fmt: skip
    assert list(table.features)[2:] == ["colour=blue", "colour=green", "colour=red"]
    assert table.observations_of("often") == {"a": 1.0, "b": 3.0, "c": 1.0, "d": 2.0}
    with pytest.raises(InputError, match=r"the value 'mid' is not one of 'low', 'high'"):
        Table.read(frame.astype({"often": object}), row="row", kinds={"often": "ordinal:low,high"})
    with pytest.raises(InputError, match="name the levels in their order"):
        Table.read(frame, row="row", kinds={"colour": "ordinal"})


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("count", [1.0, -1.0], "must be a whole number from 0 up"),
        ("count", [1.0, 2.5], "must be a whole number from 0 up"),
        ("amount", [1.0, -0.5], "must be a number"),
        ("ordinal:1,2,3", [1.0, 4.0], "must be one of 1, 2, 3"),
    ],
)
def test_impossible_values_are_refused(kind: str, values: list[float], message: str) -> None:
    frame = pd.DataFrame({"row": ["a", "b"], "x": values})
    with pytest.raises(InputError, match=message):
        Table.read(frame, row="row", kinds=kind, quiet=True)


def test_counts_are_inferred_and_their_shift_is_the_most_likely() -> None:
    rng = np.random.default_rng(0)
    counts = np.floor(np.exp(rng.normal(3, 1.5, size=(40, 5))))
    frame = pd.DataFrame(counts, columns=list("abcde"))
    frame.insert(0, "row", [f"u{i}" for i in range(40)])
    table = Table.read(frame, row="row", quiet=True)
    assert {kind.name for kind in table.kinds} == {"count"}
    features = np.tile(np.arange(5), 40)
    shift, gain = likely_shift(features, counts.ravel(), 5)
    assert gain > 0.5
    by_hand = {}
    for candidate in (0.5, 1.0, 2.0, 5.0, 10.0):
        logs = np.log(counts + candidate)
        variance = (((logs - logs.mean(0)) ** 2).sum(0) + ((logs - logs.mean(0)) ** 2).sum() / 200) / 41
        by_hand[candidate] = -0.5 * 40 * np.log(variance).sum() - logs.sum()
    assert shift == max(by_hand, key=by_hand.__getitem__)


def test_scores_are_means_between_quantiles() -> None:
    counts = np.array([30, 50, 15, 5])
    shares = (counts + 0.5) / (counts + 0.5).sum()
    draws = np.sort(np.random.default_rng(0).normal(size=400_000))
    ends = np.round(np.concatenate([[0], np.cumsum(shares)]) * len(draws)).astype(int)
    means = np.array([draws[start:end].mean() for start, end in pairwise(ends)])
    expected = (means - means[0]) / (means[-1] - means[0])
    np.testing.assert_allclose(normal_scores(counts), expected, atol=0.01)


def test_numbers_and_labels_of_two_values_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(30, 6)) > 0).astype(int)
    frame = pd.DataFrame(values, columns=[f"f{j}" for j in range(6)]).astype(object)
    frame[["f4", "f5"]] = np.array(["no", "yes"])[values[:, 4:]]
    frame.insert(0, "row", [f"u{i}" for i in range(30)])
    kinds = {None: "binary", "f4": "binary:no,yes", "f5": "binary:no,yes"}
    model = Headstart(adapter="bayes", quiet=True).fit(frame, kinds=kinds)
    model.add_features(
        {"numbers": {"kind": "binary", "observations": {"u1": 1}}, "labels": {"kind": "binary:no,yes"}}
    )
    assert str(model.feature("numbers").kind) == "binary"
    assert str(model.feature("labels").kind) == "binary:no,yes"


@pytest.mark.parametrize("kind", ["amount", "count"])
def test_amounts_and_counts_of_different_magnitudes_have_shifts_of_their_own(kind: str) -> None:
    """One shift of all would make a zero of large numbers the only one that matters, and means too large."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(120, 2)) @ rng.normal(size=(2, 12)) + rng.normal(size=(120, 12))
    units = np.array([20, 1e6] * 6)
    values = np.where(z < -1.5, 0.0, np.round(units * np.exp(z / 2)))
    held_out = rng.random(values.shape) < 0.2
    table = Table.read(np.where(held_out, np.nan, values), kinds=kind)
    shifts = {float(str(known).split(":")[1]) for known in table.kinds}
    assert len(shifts) == 2
    assert max(shifts) > 1000 * min(shifts)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    means = np.nanmean(np.where(held_out, np.nan, values), axis=0)
    errors, of_means = (
        np.where(held_out, (part - values) ** 2, 0).sum(0) for part in (model.predict().mean, means)
    )
    assert (errors < 1.5 * of_means).all()
    assert errors @ units**-2.0 < of_means @ units**-2.0
    model.add_feature("new", kind=kind, observations={"0": 1, "1": 0, "2": 3})
    assert np.isfinite(model.predict(features=["new"]).mean).all()
    partly = Table.read(np.where(units > 20, values, np.maximum(values, 1)), kinds=kind)
    assert all(known.allows(0) for known in partly.kinds)  # zeros are possible in features without any, too
    one = Table.read(np.maximum(values, 1), kinds=kind)
    assert len({str(known).split(":")[1] for known in one.kinds}) == 1  # without zeros
