from __future__ import annotations

import datetime
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.datasets import synthetic_mixed, synthetic_ratings
from headstart.errors import InputError, UnknownNameError
from headstart.evaluate.splits import FeatureSplit, split_features, split_observations
from headstart.table import Table
from headstart.table.kinds import KindType
from headstart.training.table_inputs import hide_scales


def films(**metadata) -> Table:
    """Ten films f0 … f9, with these columns of metadata."""
    names = [f"f{j}" for j in range(10)]
    long = pa.table({"row": ["a", "b"] * 10, "feature": sorted(names * 2), "value": [1.0, 5.0] * 10})
    return Table.read(long, metadata=pa.table({"feature": names, **metadata}) if metadata else None)


def parts(split):
    return [part.tolist() for part in (split.train, split.meta_train, split.meta_test)]


@settings(deadline=None)
@given(seed=st.integers(0, 100), test=st.floats(0.1, 0.4), meta=st.floats(0.3, 0.7))
def test_every_feature_is_in_exactly_one_part(seed, test, meta):
    split = split_features(films(), test, meta, seed)
    assert sorted(chain.from_iterable(parts(split))) == list(range(10))
    shares = ((1 - test) * (1 - meta), (1 - test) * meta, test)
    for part, share in zip(parts(split), shares, strict=True):
        assert abs(len(part) - 10 * share) <= 1
        assert part == sorted(part)


@settings(deadline=None)
@given(seed=st.integers(0, 100), test=st.floats(0.1, 0.8))
def test_without_a_meta_share_all_others_train_both_stages(seed, test):
    train, meta_train, meta_test = parts(split_features(films(), test, seed=seed))
    assert train == meta_train == sorted(train)
    assert sorted([*train, *meta_test]) == list(range(10))
    assert abs(len(meta_test) - 10 * test) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_the_same_features_are_tested_with_and_without_a_meta_share(seed):
    joint, apart = (split_features(films(), 0.2, share, seed) for share in (None, 0.5))
    assert joint.meta_test.tolist() == apart.meta_test.tolist()
    assert joint.train.tolist() == sorted([*apart.train.tolist(), *apart.meta_train.tolist()])


def test_the_default_parts_of_ten_are_nine_and_one():
    assert [len(part) for part in parts(split_features(films()))] == [9, 9, 1]


def test_the_papers_parts_of_ten_are_six_three_and_one():
    assert [len(part) for part in parts(split_features(films(), meta_share=1 / 3))] == [6, 3, 1]


def test_the_seed_decides():
    table = films()
    assert parts(split_features(table, seed=1)) == parts(split_features(table, seed=1))
    assert len({str(parts(split_features(table, seed=s))) for s in range(5)}) > 1


def test_by_a_column_the_old_train_and_the_new_are_tested():
    years = [1990, 1980, 2020, 1985, 2021, 2000, 1970, 2010, 2022, 1975]
    split = split_features(films(year=years), 0.2, 3 / 8, by="year")
    oldest = np.argsort(years)
    assert parts(split) == [
        sorted(oldest[:5].tolist()),
        sorted(oldest[5:8].tolist()),
        sorted(oldest[8:].tolist()),
    ]


def test_dates_count_as_numbers_and_a_missing_one_as_oldest():
    dates = [datetime.date(2000 + j, 1, 1) for j in range(9)] + [None]
    split = split_features(films(released=dates), 0.8, 0.5, by="released")
    assert parts(split)[:2] == [[9], [0]]


def test_features_of_one_year_are_parted_at_random():
    table = films(year=[2000] * 10)
    assert len({str(parts(split_features(table, seed=s, by="year"))) for s in range(5)}) > 1


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((1.2, 0.3), r"test_share must be between 0 and 1; got 1\.2"),
        ((-0.1, 0.3), "test_share must be between 0 and 1"),
        ((0.0, 0.3), "test_share must be between 0 and 1"),
        ((1.0, None), "test_share must be between 0 and 1"),
        ((float("nan"), 0.3), "test_share must be between 0 and 1; got nan"),
        ((0.5, float("nan")), "meta_share must be between 0 and 1; got nan"),
        ((0.5, 0.0), "meta_share must be between 0 and 1"),
        ((0.5, 1.0), "meta_share must be between 0 and 1"),
        ((0.5, -1), "meta_share must be between 0 and 1"),
        ((0.01, None), r"test_share 0\.01: of 10 features none is left for meta-test"),
        ((0.99, None), "none is left for train"),
        ((0.5, 0.01), r"test_share 0\.5, meta_share 0\.01: of 10 features none is left for meta-train"),
        ((0.5, 0.99), "none is left for train"),
    ],
)
def test_bad_shares_are_refused(shares, message):
    with pytest.raises(InputError, match=message):
        split_features(films(), *shares)


def test_bad_columns_are_refused():
    table = films(year=list(range(10)), country=["UK", "US"] * 5)
    with pytest.raises(UnknownNameError, match="no such metadata column; did you mean 'year'"):
        split_features(table, by="yaer")
    with pytest.raises(InputError, match="'country': it holds string, not numbers"):
        split_features(table, by="country")
    with pytest.raises(InputError, match="no feature metadata"):
        split_features(films(), by="year")


def values_changed(table: Table, features) -> Table:
    """The same cells read again, with the values of the reals among these features moved far away."""
    moved = np.isin(table.feature_index, features) & (table.kinds.types[table.feature_index] == KindType.REAL)
    long = pa.table(
        {
            "row": [table.rows[i] for i in table.row_index],
            "feature": [table.features[j] for j in table.feature_index],
            "value": np.where(moved, 3 * table.values + 500, table.values),
        }
    )
    kinds = {
        name: "real" if kind.type == KindType.REAL else kind
        for name, kind in zip(table.features, table.kinds, strict=True)
    }
    return Table.read(long, kinds=kinds)


@pytest.mark.parametrize("own", [False, True], ids=["shared scale", "a scale each"])
def test_the_scale_of_a_held_out_real_depends_on_train_features_only(own):
    mixed = synthetic_mixed(60, 30)
    split = split_features(mixed, 0.3, 3 / 7)
    table = values_changed(mixed, split.train[::2] if own else [])
    other = values_changed(table, split.meta_test)
    assert table.kinds != other.kinds
    first, second = hide_scales(table, split.train), hide_scales(other, split.train)
    if own:
        assert len({str(table.kinds[j]) for j in split.train}) > 3
        assert [str(first.kinds[j]) for j in split.train] == [str(table.kinds[j]) for j in split.train]
    assert first.kinds == second.kinds
    assert np.array_equal(first.values, table.values)
    assert {first.kinds[j].name for j in split.meta_test} == {mixed.kinds[j].name for j in split.meta_test}


def test_scales_of_tables_without_reals_are_left_alone():
    table = films()
    assert hide_scales(table, split_features(table).train) is table


def test_a_part_with_no_real_to_learn_from_leaves_the_plain_scale():
    table = synthetic_mixed(40, 9)
    real = np.flatnonzero(table.kinds.types == KindType.REAL)
    rest = np.setdiff1d(np.arange(9), real)
    hidden = hide_scales(table, FeatureSplit(rest, real[:1], real[1:]).train)
    assert {str(hidden.kinds[j]) for j in real} == {"real:0:1"}


def test_the_newest_features_and_observations_are_held_out():
    lines = {"row": [*"aabbccdd"], "feature": [*"xyxzyzxy"], "value": [1, 2, 3, 4, 5, 1, 2, 3],
             "time": [0, 5, 1, 7, 6, 8, 9, 2]}  # fmt: skip
    table = Table.read(pa.table(lines), kinds="rating:1:5", time="time")
    split = split_features(table, test_share=1 / 3, by="time")
    assert [table.features[i] for i in split.meta_test] == ["z"]
    known, held_out = split_observations(table, 0.25, by_time=True)
    assert sorted(held_out.times) == [8, 9]
    assert len(known) == 6
    assert known.features == held_out.features
    with pytest.raises(InputError, match="by_time needs the times"):
        split_observations(synthetic_ratings(20, 10, 0.5), by_time=True)
    with pytest.raises(InputError, match="no feature metadata and no times"):
        split_features(films(), by="time")
