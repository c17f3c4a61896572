"""Whole numbers beyond 2**53 keep all digits, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart import Headstart, InputError, Table
from headstart.datasets import synthetic_ratings

ODD = 2**53 + 1


def frame(value: Any, arrow_type: pa.DataType) -> pa.Table:
    return pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": pa.array([value, 2], arrow_type)})


@pytest.mark.parametrize(
    ("value", "arrow_type"),
    [
        (ODD, pa.int64()),
        (-ODD, pa.int64()),
        (2**63 - 1, pa.int64()),
        (ODD, pa.uint64()),
        (2**64 - 1, pa.uint64()),
    ],
)
def test_values_do_not_lose_digits(tmp_path: Path, value: int, arrow_type: pa.DataType) -> None:
    data = frame(value, arrow_type)
    pq.write_table(data, tmp_path / "a.parquet")
    data.to_pandas().to_csv(tmp_path / "a.csv", index=False)
    for source in (data, data.to_pandas(), tmp_path / "a.parquet", tmp_path / "a.csv"):
        with pytest.raises(InputError, match=f"the whole number {value} has more digits than a value keeps"):
            Table.read(source, kinds="real")
    with pytest.raises(InputError, match=r"a\.csv, line 2: column 'value'"):
        Table.read(tmp_path / "a.csv", kinds="real")


@pytest.mark.parametrize("value", [2**53, 2**53 + 2, 2**62, -(2**63)])
def test_exact_values_are_read(tmp_path: Path, value: int) -> None:
    data = frame(value, pa.int64())
    data.to_pandas().to_csv(tmp_path / "a.csv", index=False)
    for source in (data, tmp_path / "a.csv"):
        assert Table.read(source, kinds={"x": "real:0:1e18", "y": "real"}).values[0] == value
    assert len(Table.read(frame(1.5e300, pa.float64()), kinds={"x": "real:0:1e299", "y": "real"})) == 2


def test_python_calls_refuse_lost_digits() -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(synthetic_ratings(rows=40, features=8, density=0.6))
    for call in (
        lambda: model.observe_feature("film 0", {"row 0": ODD}),
        lambda: model.observe([("row 0", "film 0", ODD)]),
        lambda: model.add_feature("new", observations={"row 0": ODD}),
        lambda: model.add_row("new", observations={"film 0": ODD}),
    ):
        with pytest.raises(InputError, match=f"the whole number {ODD} has more digits"):
            call()


def test_names_keep_their_digits(tmp_path: Path) -> None:
    ids = [2**62 + 1, 2**62 + 2]
    data = pa.table({"row": ids, "feature": ["x", "y"], "value": [1, 2]})
    data.to_pandas().to_csv(tmp_path / "a.csv", index=False)
    for source in (data, tmp_path / "a.csv", pd.DataFrame(data.to_pydict())):
        assert list(Table.read(source).rows) == [str(number) for number in ids]


def test_identifiers_in_metadata_keep_their_digits() -> None:
    ids = pa.array([2**62 + 1, 2**62 + 2, 2**62 + 1, 2**62 + 2])
    films = pa.table(
        {"feature": list("abcd"), "director": ids, "big": pa.array([2**64 - 1, 2] * 2, pa.uint64())}
    )
    data = pa.table({"row": ["u", "v"], "feature": ["a", "b"], "value": [1, 2]})
    table = Table.read(data, metadata=films, metadata_types={"director": "category"})
    director, big = table.schema.columns
    assert director.values == (str(2**62 + 1), str(2**62 + 2))
    assert big.values == ("18446744073709551615", "2")


def test_a_wide_file_keeps_its_order(tmp_path: Path) -> None:
    """Predictions of all rows and features line up with the frame."""
    random = np.random.default_rng(0)
    rows, features = [f"r{i}" for i in (10, 9, 2, 11, 1, 30, 3, 4)], ["10", "b", "9", "a", "2"]
    values = random.integers(1, 6, (8, 5))
    data = pd.DataFrame(values, columns=features).assign(row=rows)
    data.to_csv(tmp_path / "wide.csv", index=False)
    for source in (data, tmp_path / "wide.csv"):
        table = Table.read(source, kinds="rating:1:5")
        assert (list(table.rows), list(table.features)) == (rows, features)
        assert table.values.reshape(8, 5).tolist() == values.tolist()
    model = Headstart(adapter="bayes", quiet=True).fit(data, kinds="rating:1:5")
    prediction = model.predict()
    assert (list(prediction.rows), list(prediction.features)) == (rows, features)
    assert model.table().rows[:3] == tuple(rows[:3])
    model.save(tmp_path / "m")
    assert list(Headstart.load(tmp_path / "m").rows) == rows
    films = pd.DataFrame({"feature": ["c", "a", "10"], "year": [1, 2, 3]})
    assert list(Table.read(data, metadata=films, kinds="rating:1:5").features) == [*features, "c"]


@pytest.mark.parametrize("level", [0.9999999999999999, 1 - 1e-12])
def test_levels_too_near_1_are_refused(level: float) -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(synthetic_ratings(rows=40, features=8, density=0.6))
    prediction = model.predict()
    for call in (
        lambda: prediction.interval(level),
        lambda: prediction.quantile(level),
        lambda: prediction.to_arrow(level),
        lambda: model.recommend("row 0", level=level),
        lambda: model.audience("film 0", by="upper", quantile=level),
    ):
        with pytest.raises(InputError, match=r"0\.999999999|5e-10"):
            call()
    assert np.isfinite(prediction.interval(1 - 1e-9)).all()
    assert np.isfinite(prediction.quantile(1e-9)).all()


@pytest.mark.parametrize("value", [ODD, -ODD, np.int64(ODD), np.uint64(2**64 - 1), 10**30])
def test_values_that_a_real_could_take_refuse_lost_digits(value: Any) -> None:
    """Ratings refuse such values in any case; the values of these reals are of this size."""
    random = np.random.default_rng(0)
    names = [(f"u{i}", f"f{j}") for i in range(30) for j in range(6) if random.random() < 0.8]
    data = pd.DataFrame(names, columns=["row", "feature"]).assign(value=1e18 * random.normal(size=len(names)))
    model = Headstart(adapter="bayes", quiet=True).fit(Table.read(data, kinds="real", quiet=True))
    for call in (
        lambda: model.observe([("u1", "f1", value)]),
        lambda: model.observe([("u1", "f1", value), ("u2", "f1", 2)]),
        lambda: model.observe_row("u1", {"f1": value}),
        lambda: model.add_feature("new", observations={"u1": value}),
        lambda: model.add_rows({"new": {"f1": value}}),
        lambda: model.predict({"guest": {"f1": value}}, ["f2"]),
    ):
        with pytest.raises(InputError, match="more digits than a value keeps"):
            call()
