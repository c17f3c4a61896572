"""Kinds: their text form, inference from values, and values that they do not allow."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, reject

from headstart.errors import InputError, UnknownNameError
from headstart.table import Kind, Kinds, Table
from headstart.table.kind_inference import resolve_kinds
from headstart.table.names import Names

FINITE = st.floats(-1e9, 1e9)


def long(columns):
    """Return a long table with these values of each feature, one row per value."""
    triples = [(f"r{i}", name, value) for name, values in columns.items() for i, value in enumerate(values)]
    rows, features, values = zip(*triples, strict=True)
    return pa.table({"row": rows, "feature": features, "value": pa.array(values, pa.float64())})


def kinds_of(columns, kinds=None):
    table = Table.read(long(columns), kinds=kinds)
    return {name: table.kinds[i] for i, name in enumerate(table.features)}


@given(FINITE, st.floats(1e-6, 1e9))
def test_text_of_a_real_reads_back_the_same(center, scale):
    assert Kind.parse(str(Kind.real(center, scale))) == Kind.real(center, scale)


@given(st.integers(-1000, 1000), st.integers(1, 1000), st.sampled_from([1, 2, 4, 10]))
def test_text_of_a_rating_reads_back_the_same(low, steps, per):
    kind = Kind.rating(low / per, (low + steps) / per)
    assert Kind.parse(str(kind)) == kind
    assert len(str(kind)) <= len("rating:-1000.75:-1000.75")


@given(FINITE, FINITE)
def test_a_rating_keeps_its_limits(one, other):
    low, high = min(one, other), max(one, other)
    if low < high:
        kind = Kind.rating(low, high)
        assert (kind.low, kind.high) == (low, high)
        assert Kind.parse(str(kind)) == kind
        assert (kind.scale(low), kind.scale(high)) == (0, 1)


def test_the_limits_of_a_rating_are_not_rounded():
    table = Table.read(long({"a": [-5, -1.7]}), kinds="rating:-5:-1.7")
    assert table.kinds[0].high == -1.7
    assert str(table.kinds[0]) == "rating:-5:-1.7"
    assert table.kinds[0].allowed == "from -5 to -1.7"


def test_impossible_values():
    kinds = Kinds([Kind.binary(), Kind.rating(1, 5), Kind.real(3, 2)])
    values = {
        0: {0.0: False, 1.0: False, 1 - 1e-12: True, 0.5: True, 2.0: True, np.nan: True},
        1: {1.0: False, 5.0: False, 2.7: False, 5 + 1e-12: False, 5.0001: True, 0.0: True, np.nan: True},
        2: {-1e9: False, 1e300: False},
    }
    cases = [(feature, value, bad) for feature, of_one in values.items() for value, bad in of_one.items()]
    features, numbers, bad = (np.array(column) for column in zip(*cases, strict=True))
    assert kinds.impossible(numbers, features).tolist() == bad.tolist()
    assert [kind.allowed for kind in kinds] == ["0 or 1", "from 1 to 5", "any number"]


@given(FINITE, FINITE)
def test_values_between_the_limits_of_a_rating_are_possible(low, high):
    if low < high:
        values = np.array([low, high, low + 0.3 * (high - low)])
        assert not Kinds([Kind.rating(low, high)]).impossible(values, np.zeros(3, np.int64)).any()


def test_summary_of_many_kinds_is_short():
    kinds = Kinds([Kind.rating(0, i) for i in range(1, 9)] + [Kind.rating(0, 1)])
    assert kinds.summary().startswith("2 rating:0:1, 1 rating:0:2")
    assert kinds.summary().endswith("3 more kinds")


# --- inference --------------------------------------------------------------------------------------


def test_zeros_and_ones_are_binary():
    assert set(map(str, kinds_of({"a": [0, 1], "b": [1], "c": [0]}).values())) == {"binary"}


def test_few_values_on_a_grid_are_one_rating_for_all():
    assert set(map(str, kinds_of({"a": [0.5, 5], "b": [3, 3.5], "c": [4]}).values())) == {"rating:0.5:5"}
    assert str(kinds_of({"a": [0, 2, 5]})["a"]) == "rating:0:5"  # whole numbers, with gaps
    assert str(kinds_of({"a": [0.1, 0.2, 0.4]})["a"]) == "rating:0.1:0.4"


def test_values_that_are_on_no_grid_are_real():
    assert kinds_of({"a": [0.123, 1.777, 5.4321]})["a"].name == "real"
    assert kinds_of({"a": [1, 2, 1000]})["a"].name == "real"  # too many steps for a grid
    assert kinds_of({"a": [7, 7, 7]})["a"].name == "real"


def test_several_kinds_in_one_table():
    random = np.random.default_rng(0)
    columns = {
        "bit": random.integers(0, 2, 30),
        "ones": np.ones(30),
        "stars": random.integers(1, 6, 40),
        "halves": random.integers(2, 9, 40) / 2,
        "few": [1, 2, 3],
        "height": random.normal(1.7, 0.1, 50),
    }
    table = Table.read(long(columns))
    kinds = {name: table.kinds[i] for i, name in enumerate(table.features)}
    assert str(kinds["bit"]) == str(kinds["ones"]) == "binary"
    assert str(kinds["stars"]) == "rating:1:5"
    assert str(kinds["halves"]) == "rating:1:4"
    assert kinds["few"].name == kinds["height"].name == "real"
    note = next(note for note in table.notes if "inferred" in note)
    assert "2 binary" in note
    assert "2 real" in note


def test_similar_reals_share_center_and_scale():
    random = np.random.default_rng(0)
    columns = {str(i): random.normal(10 + i, 2, 30) for i in range(5)}
    (kind,) = set(kinds_of(columns).values())
    values = np.concatenate(list(columns.values()))
    assert (kind.offset, kind.span) == pytest.approx((values.mean(), values.std()))


def test_reals_of_different_magnitude_have_their_own_scale():
    random = np.random.default_rng(0)
    table = Table.read(
        long({"mm": random.normal(1700, 100, 30), "kg": random.normal(70, 8, 30), "same": [3.3] * 6}),
        metadata=pa.table({"feature": ["unseen"]}),
    )
    kinds = {name: table.kinds[i] for i, name in enumerate(table.features)}
    assert kinds["mm"].offset == pytest.approx(1700, abs=60)
    assert kinds["kg"].span == pytest.approx(8, abs=3)
    assert kinds["same"] == Kind.real(kinds["same"].offset, abs(kinds["same"].offset))  # not zero
    assert kinds["unseen"].name == "real"
    assert any("each has its own center and scale" in note for note in table.notes)
    assert np.isfinite(table.cells().values.numpy()).all()


@pytest.mark.parametrize("value", [0.1, 0.0, -7.3, 1e-12, 123456.789])
def test_a_constant_has_a_scale(value):
    (kind,) = set(kinds_of({"a": [value] * 7, "b": [value] * 3}, kinds="real").values())
    assert kind.span >= min(abs(value), 1e-12)
    assert abs(kind.scale(value)) < 1e-6


@given(st.dictionaries(st.integers(0, 5), st.lists(FINITE, min_size=1, max_size=30), min_size=1))
@example({0: [0.0, 0.0, 2.0, 1.1e-308, 1.1e-308]})
@example({0: [0.0, 0.0, 2.0, 1.1e-308, 1.1e-308], 1: [1e9, 2e9, 1e9, 2e9, 3e9]})
def test_inferred_kinds_always_fit_their_values(columns):
    index = np.concatenate([np.full(len(values), feature) for feature, values in columns.items()])
    values = np.concatenate(list(columns.values()))
    try:
        kinds, _ = resolve_kinds(None, Names([str(i) for i in range(7)], "feature"), index, values)
    except InputError as asked:  # nothing is inferred from ones alone, or from a code for missing values
        if "may be a code" not in str(asked) and "every value" not in str(asked):
            raise
        reject()
    scaled = kinds.scale(values, index)
    assert len(kinds) == 7
    assert np.isfinite(scaled).all()
    assert (kinds.spans > 0).all()
    bounded = kinds.types[index] != 2
    assert ((scaled[bounded] >= -1e-9) & (scaled[bounded] <= 1 + 1e-9)).all()


def test_features_without_observations_get_the_most_common_kind():
    columns = {"a": [1, 5], "b": [2, 3], "c": [0, 1]}
    films = pa.table({"feature": ["d", "e"]})
    table = Table.read(
        long(columns), metadata=films, kinds={"a": "rating:1:5", "b": "rating:1:5", "c": "binary"}
    )
    assert str(table.kinds[table.features.position("d")]) == "rating:1:5"
    assert table.counts.tolist() == [2, 2, 2, 0, 0]
    assert any(
        "2 features without observations got the most common kind, rating:1:5" in note for note in table.notes
    )


def test_a_small_spread_around_a_large_number_is_no_constant():
    """Values are centered before they are scaled: 1e9 ± 0.5 has a scale of 0.3, not of 1e9."""
    random = np.random.default_rng(0)
    columns = {str(i): 1e9 + random.uniform(-0.5, 0.5, 40) for i in range(4)}
    columns["own"] = 3e9 + random.uniform(-0.5, 0.5, 40)
    for kinds in (None, "real"):
        table = Table.read(long(columns), kinds=kinds)
        assert table.kinds.spans == pytest.approx([0.29] * 5, abs=0.05)
        scaled = table.cells().values.numpy()
        assert abs(scaled).max() < 2
        np.testing.assert_allclose(scaled.std(), 1, atol=0.05)
        back = table.kinds.unscale(scaled.astype(np.float64), table.feature_index)
        np.testing.assert_allclose(back, table.values, rtol=0, atol=1e-6)


def test_values_that_differ_by_rounding_only_are_constant():
    (kind,) = set(kinds_of({"a": [0.1 + 0.2, 0.3] * 5}, kinds="real").values())
    assert kind.span == pytest.approx(0.3)


# --- columns that are alike -------------------------------------------------------------------------


def test_counts_are_one_kind():
    random = np.random.default_rng(0)
    for growth in (1.1, 1.25):  # up to 3 and up to 80 on average
        columns = {f"c{i:02}": random.poisson(0.3 * growth**i, 200) for i in range(26)}
        columns["h"] = random.normal(1.7, 0.1, 50)  # not a table of whole numbers only
        kinds = kinds_of(columns)
        of_counts = {str(kinds[name]) if kinds[name].name != "real" else "real" for name in columns}
        assert len({kinds[f"c{i:02}"].name for i in range(26)}) == 1, growth
        assert len(of_counts) <= 2


@pytest.mark.parametrize("size", [1.0, 2.7, 7.4, 33.0])
def test_poisson_data_are_counts(size):
    random = np.random.default_rng(1)
    rates = size * np.exp(0.4 * random.normal(size=(200, 3)) @ random.normal(size=(3, 40)))
    kinds = kinds_of({f"c{i}": column for i, column in enumerate(random.poisson(rates).T)})
    assert {kind.name for kind in kinds.values()} == {"count"}


def test_columns_that_do_not_reach_the_ends_of_the_usual_rating():
    random = np.random.default_rng(0)
    columns = {f"item {i}": random.integers(1, 6, 100) for i in range(10)}
    columns |= {"high": random.integers(3, 6, 100), "low": random.integers(1, 4, 100), "new": [3, 4]}
    columns |= {"age": random.integers(18, 90, 100), "weight": random.normal(70, 9, 100)}
    kinds = kinds_of(columns)
    assert {str(kinds[name]) for name in columns if name not in ("age", "weight")} == {"rating:1:5"}
    assert {kinds["age"].name, kinds["weight"].name} == {"real"}


def test_ratings_that_differ_keep_their_ranges():
    random = np.random.default_rng(0)
    columns = {f"stars {i}": random.integers(1, 6, 100) for i in range(4)}
    columns |= {f"percent {i}": random.integers(0, 11, 100) * 10 for i in range(4)}
    columns |= {"weight": random.normal(70, 9, 100)}
    kinds = kinds_of(columns)
    assert {str(kinds[f"stars {i}"]) for i in range(4)} == {"rating:1:5"}
    assert {str(kinds[f"percent {i}"]) for i in range(4)} == {"rating:0:100"}


def test_what_was_inferred_can_be_pasted_back():
    random = np.random.default_rng(0)
    columns = {"bit": random.integers(0, 2, 30), "a": random.normal(size=30), "b": random.normal(size=30)}
    table = Table.read(long(columns))
    assert table.notes[0] == "features inferred: 2 real, 1 binary (kinds={None: 'real', 'bit': 'binary'})"
    again = Table.read(long(columns), kinds={None: "real", "bit": "binary"})
    assert again == table
    assert again.notes == ()


def test_the_text_of_inferred_counts_without_zeros_reads_back_the_same():
    random = np.random.default_rng(0)
    columns = {f"c{i}": np.exp(random.normal(3, 2, 60)).round() + 1 for i in range(12)}
    for kind in kinds_of(columns).values():
        assert kind.name == "count"
        assert Kind.parse(str(kind)) == kind


# --- kinds that are given ---------------------------------------------------------------------------


def test_one_kind_for_all():
    columns = {"a": [1, 2], "b": [4]}
    assert set(map(str, kinds_of(columns, "rating:0:10").values())) == {"rating:0:10"}
    assert set(map(str, kinds_of(columns, "rating").values())) == {"rating:1:4"}
    assert set(kinds_of(columns, Kind.real(1, 2)).values()) == {Kind.real(1, 2)}
    assert set(map(str, kinds_of(columns, "real:0:1").values())) == {"real:0:1"}
    shared = set(kinds_of(columns, "real").values())
    assert {kind.name for kind in shared} == {"real"}
    assert len(shared) == 1


def test_kinds_by_feature():
    columns = {"a": [0, 1], "b": [2, 4], "c": [3, 3], "7": [1, 5]}
    kinds = kinds_of(columns, {"a": "binary", "b": "rating", "c": "rating", 7: Kind.rating(0, 9)})
    assert {name: str(kind) for name, kind in kinds.items()} == {
        "a": "binary",
        "b": "rating:2:4",
        "c": "rating:2:4",  # all its values are equal: it gets the limits of all these ratings
        "7": "rating:0:9",
    }
    assert str(kinds_of(columns, {"a": "real:0:1"})["b"]) == "rating:1:5"  # other kinds are inferred


def test_bad_kinds():
    columns = {"a": [1, 5]}
    with pytest.raises(InputError, match="did you mean 'rating'"):
        kinds_of(columns, "ratings")
    with pytest.raises(InputError, match="a kind is a text such as 'rating:1:5'; got 3"):
        kinds_of(columns, {"a": 3})
    with pytest.raises(UnknownNameError, match="unknown feature 'b'"):
        kinds_of(columns, {"b": "binary"})
    with pytest.raises(InputError, match="all values of the table are 3; give the limits"):
        kinds_of({"a": [3, 3]}, "rating")
    with pytest.raises(
        InputError, match=r"all values of feature 'a' and of the other .* are 3; give the limits"
    ):
        kinds_of({"a": [3, 3], "b": [1, 2]}, {"a": "rating"})
    with pytest.raises(InputError, match="feature 'c' has no observations; give the limits"):
        Table.read(long(columns), metadata=pa.table({"feature": ["c"]}), kinds={"c": "rating"})
    with pytest.raises(InputError, match="too large"):
        kinds_of({"a": [1e308, -1e308, 0.3]})


def test_values_that_a_kind_does_not_allow():
    columns = {"a": [0, 1], "b": [1, 7]}
    with pytest.raises(InputError, match="row 'r1', feature 'b': the value 7 must be 0 or 1"):
        kinds_of(columns, "binary")
    with pytest.raises(
        InputError, match=r"row 'r1', feature 'b': the value 7 must be from 1 to 5 .*rating:1:5"
    ):
        kinds_of(columns, {"b": "rating:1:5"})
