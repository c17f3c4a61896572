"""Try generated bad inputs in Python, files, commands and requests, and count the outcomes.

Run ``.venv/bin/python -m tests.faults.input_round --seed 1 --cases 1500``. The outcomes:

- clear: an error of Headstart in one line (HTTP: 4xx with a detail; a command: ``error: …``);
- accepted: the input is allowed at this place;
- silent: the input is not allowed at this place, and no error was raised;
- changed: an error was raised, but the model is another one than before;
- raw: an exception of Python or of another library, a traceback, or a status of 500;
- hang: no answer within ``SECONDS``.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import fractions
import io
import os
import random
import signal
import sys
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from starlette.testclient import TestClient

from headstart import Headstart, HeadstartError, Table
from headstart.service.app import create_app
from headstart.service.worker import ServiceSettings
from tests.faults.test_bad_input import made_up_table
from tests.test_cli import run

SECONDS = 30

NAN, INF = float("nan"), float("inf")


class Odd(NamedTuple):
    """A value, and the places where it is allowed."""

    what: str
    make: Callable[[], Any]
    allowed: frozenset[str]


def odd(what: str, make: Callable[[], Any], *allowed: str) -> Odd:
    return Odd(what, make, frozenset(allowed))


class Contrary:
    """An object whose comparisons, length, iteration and text all fail."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iteration")

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


def endless() -> Iterator[int]:
    while True:
        yield 1


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def failing_lazy() -> pl.LazyFrame:
    return pl.LazyFrame({"row": ["u1"], "feature": ["f1"], "value": ["x"]}).with_columns(
        pl.col("value").cast(pl.Int64)
    )


NUMBER = ("value", "number", "time")

ODD = [
    odd("None", lambda: None, "optional"),
    odd("True", lambda: True, "value", "category", "rating"),
    odd("numpy bool", lambda: np.True_, "value", "category", "rating"),
    odd("Ellipsis", lambda: ...),
    odd("a type", lambda: int),
    odd("a function", lambda: lambda: 3),
    odd("a module", lambda: sys),
    odd("an object", object),
    odd("a contrary object", Contrary),
    odd("NaN", lambda: NAN, "missing"),
    odd("inf", lambda: -INF),
    odd("a float", lambda: 2.0, *NUMBER, "category", "rating"),
    odd("a fraction", lambda: 2.5, *NUMBER, "category", "rating"),
    odd("a large whole number", lambda: 2**53 + 1, "number", "category", "name", "time"),
    odd("a huge whole number", lambda: 10**400, "category"),
    odd("a long whole number", lambda: 10**5000, "category"),
    odd("int8", lambda: np.int8(3), *NUMBER, "category", "name", "rating", "count"),
    odd("float16", lambda: np.float16(3), *NUMBER, "category", "name", "rating"),
    odd("float32", lambda: np.float32(2.5), *NUMBER, "category", "rating"),
    odd("uint64", lambda: np.uint64(2**64 - 1), "number", "category", "name", "time"),
    odd("complex", lambda: 3 + 2j),
    odd("numpy complex", lambda: np.complex64(3)),
    odd("Decimal", lambda: decimal.Decimal("2.50")),
    odd("Decimal NaN", lambda: decimal.Decimal("NaN")),
    odd("Decimal sNaN", lambda: decimal.Decimal("sNaN")),
    odd("Fraction", lambda: fractions.Fraction(1, 3)),
    odd("bytes", lambda: b"u1"),
    odd("bytearray", lambda: bytearray(b"u1")),
    odd("memoryview", lambda: memoryview(b"u1")),
    odd("numpy text", lambda: np.str_("u1"), "known row", "text", "category"),
    odd("numpy bytes", lambda: np.bytes_(b"u1")),
    odd("numpy void", lambda: np.void(b"u1")),
    odd("a date", lambda: datetime.date(2024, 5, 1), "date", "time"),
    odd("a datetime", lambda: datetime.datetime(2024, 5, 1, 3), "date", "time"),
    odd("a time", lambda: datetime.time(3)),
    odd("a timedelta", lambda: datetime.timedelta(3)),
    odd(
        "the year 1 in a zone",
        lambda: datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
    ),
    odd(
        "a Timestamp with nanoseconds", lambda: pd.Timestamp("2024-05-01 00:00:00.123456789"), "date", "time"
    ),
    odd("a Timestamp in a zone", lambda: pd.Timestamp("2024-05-01", tz="Asia/Tokyo"), "date", "time"),
    odd("NaT", lambda: pd.NaT, "missing"),
    odd("NA", lambda: pd.NA, "missing"),
    odd("datetime64 ns", lambda: np.datetime64("2024-05-01T00:00:00.123456789"), "date", "time"),
    odd("datetime64 far", lambda: np.datetime64("30000-05-01")),
    odd("datetime64 before Christ", lambda: np.datetime64("-5000-05-01")),
    odd("datetime64 NaT", lambda: np.datetime64("NaT"), "missing"),
    odd("timedelta64", lambda: np.timedelta64(3, "D")),
    odd("a Period", lambda: pd.Period("2024-05")),
    odd("an Interval", lambda: pd.Interval(1, 2)),
    odd("a UUID", lambda: uuid.UUID(int=5)),
    odd("a path", lambda: Path("u1")),
    odd("a tuple", lambda: ("u1",)),
    odd("a set", lambda: {"u1"}),
    odd("a frozenset", lambda: frozenset({"u1"})),
    odd("a range", lambda: range(3)),
    odd("a generator", lambda: (x for x in ["u1"])),
    odd("an endless generator", endless),
    odd("a dict", lambda: {"u1": 3}),
    odd("a dict of dicts", lambda: {"u1": {"f1": 3}}),
    odd("a dict with odd keys", lambda: {(1, 2): 3, None: 4}),
    odd("an empty dict", dict),
    odd("an empty list", list),
    odd("a list of lists", lambda: [["u1"]]),
    odd("a deep list", lambda: nested(3000)),
    odd("a list of None", lambda: [None]),
    odd("a list of NaN", lambda: [NAN]),
    odd("a list of a contrary object", lambda: [Contrary()]),
    odd("an empty array", lambda: np.zeros(0)),
    odd("an array without axes", lambda: np.array(3.0)),
    odd("a matrix", lambda: np.zeros((2, 2))),
    odd("an array of objects", lambda: np.array([None, {}], dtype=object)),
    odd("a record array", lambda: np.zeros(2, dtype=[("a", "i4")])),
    odd("a tensor", lambda: torch.zeros(2)),
    odd("a tensor without axes", lambda: torch.tensor(3.0)),
    odd("an arrow array", lambda: pa.array(["u1"])),
    odd("an arrow scalar", lambda: pa.scalar(3)),
    odd("a Series", lambda: pd.Series([3.0], index=["nobody"])),
    odd("a Series with a repeated index", lambda: pd.Series([3.0, 4.0], index=["u1", "u1"])),
    odd("a Series of lists", lambda: pd.Series([[1], [2]])),
    odd("a polars Series", lambda: pl.Series([1.0])),
    odd("a polars Series of structs", lambda: pl.Series([{"a": 1}])),
    odd("a frame without columns", lambda: pd.DataFrame(index=["u1"])),
    odd(
        "a frame with two levels of columns",
        lambda: pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])),
    ),
    odd(
        "a frame with repeated index names",
        lambda: pd.DataFrame(
            {"value": [1.0]}, index=pd.MultiIndex.from_tuples([("u1", "f1")], names=["row", "row"])
        ),
    ),
    odd(
        "a frame whose index is a column",
        lambda: pd.DataFrame(
            {"row": ["u1"], "feature": ["f1"], "value": [1.0]}, index=pd.Index(["u1"], name="row")
        ),
    ),
    odd("a frame of lists", lambda: pl.DataFrame({"row": [["u1"]], "feature": ["f1"], "value": [1]})),
    odd("a frame of structs", lambda: pl.DataFrame({"row": [{"a": 1}], "feature": ["f1"], "value": [1]})),
    odd("a frame of objects", lambda: pd.DataFrame({"row": [object()], "feature": ["f1"], "value": [1.0]})),
    odd(
        "a frame of contrary objects",
        lambda: pd.DataFrame(
            {"row": ["u1"], "feature": ["f1"], "value": pd.Series([Contrary()], dtype=object)}
        ),
    ),
    odd(
        "a frame of intervals",
        lambda: pd.DataFrame({"row": [pd.Interval(1, 2)], "feature": ["f1"], "value": [1]}),
    ),
    odd(
        "a frame of periods",
        lambda: pd.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [pd.Period("2024")]}),
    ),
    odd(
        "a frame of complex numbers", lambda: pd.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [1j]})
    ),
    odd(
        "a frame of decimals",
        lambda: pl.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [decimal.Decimal("99.5")]}),
    ),
    odd(
        "a frame of dates",
        lambda: pl.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [datetime.date(2024, 1, 1)]}),
    ),
    odd("a lazy frame that fails", failing_lazy),
    odd("a lazy frame without its column", lambda: pl.LazyFrame({"row": ["u1"]}).select("nothing")),
    odd("a lazy frame of no file", lambda: pl.scan_csv("/nowhere/at/all.csv")),
    odd(
        "a sparse frame",
        lambda: pd.DataFrame({"row": ["nobody"], "feature": ["f1"], "value": pd.arrays.SparseArray([1.0])}),
    ),
    odd("an arrow table with repeated columns", lambda: pa.table([[1], [2]], names=["row", "row"])),
    odd(
        "an arrow table of unions",
        lambda: pa.table(
            {
                "row": ["u1"],
                "feature": ["f1"],
                "value": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
            }
        ),
    ),
    odd(
        "an arrow table with a null type",
        lambda: pa.table({"row": pa.nulls(1), "feature": ["f1"], "value": [1.0]}),
    ),
    odd("an open file", lambda: io.StringIO("row,feature,value\nu1,f1,3\n")),
    odd("an empty text", lambda: "", "text", "category", "labels"),
    odd("a blank", lambda: "  \t\n", "text", "category", "labels"),
    odd("an unknown name", lambda: "nobody at all", "new name", "text", "category", "labels"),
    odd("a surrogate", lambda: "u\udcff"),
    odd("a NUL", lambda: "u\x001", "new name", "text", "category", "labels"),
    odd("a long text", lambda: "x" * 300_000, "new name", "text", "category", "labels"),
    odd("a number as text", lambda: "3", "text", "category", "labels", "time", "new name"),
    odd("a date as text", lambda: "2024-02-30", "text", "category", "labels", "new name"),
    odd("markup", lambda: "<script>alert(1)</script>", "text", "category", "labels", "new name"),
]

Door = tuple[str, str, Callable[[Headstart, Any], Any]]  # what enters, where it is allowed, call

OBSERVED = {"u1": 3, "u2": 4}

DOORS: list[Door] = [
    ("feature", "known feature", lambda m, x: m.feature(x)),
    ("row", "known row", lambda m, x: m.row(x)),
    ("predict rows", "optional names", lambda m, x: m.predict(x, ["f1"])),
    ("predict one row", "known row", lambda m, x: m.predict(["u1", x], ["f1"])),
    ("predict features", "optional names", lambda m, x: m.predict(["u1"], x)),
    ("predict new row", "observations", lambda m, x: m.predict({"guest": x}, ["f1"])),
    ("predict new value", "rating", lambda m, x: m.predict({"guest": {"f1": x}}, ["f1"])),
    ("recommend", "known row", lambda m, x: m.recommend(x)),
    ("recommend_many", "names", lambda m, x: m.recommend_many(x)),
    ("recommend n", "count", lambda m, x: m.recommend("u1", x)),
    ("recommend features", "optional names", lambda m, x: m.recommend("u1", features=x)),
    ("recommend by", "by", lambda m, x: m.recommend("u1", by=x)),
    ("recommend quantile", "share", lambda m, x: m.recommend("u1", by="upper", quantile=x)),
    ("recommend level", "share", lambda m, x: m.recommend("u1", level=x)),
    ("recommend where", "filter", lambda m, x: m.recommend("u1", where=x)),
    ("recommend where value", "anything", lambda m, x: m.recommend("u1", where={"genre": x})),
    ("recommend exclude", "excluded", lambda m, x: m.recommend("u1", exclude=x)),
    ("recommend exclude_observed", "truth", lambda m, x: m.recommend("u1", exclude_observed=x)),
    ("sample n", "small count", lambda m, x: m.sample(["u1"], ["f1"], x)),
    ("sample rows", "optional names", lambda m, x: m.sample(x, ["f1"])),
    ("sample random_state", "whole number", lambda m, x: m.sample(["u1"], ["f1"], random_state=x)),
    ("impute m", "small count", lambda m, x: m.impute(x)),
    ("impute features", "optional names", lambda m, x: m.impute(2, features=x)),
    ("audience", "known feature", lambda m, x: m.audience(x)),
    ("audience rows", "optional names", lambda m, x: m.audience("f1", rows=x)),
    ("suggest", "known feature", lambda m, x: m.suggest(x)),
    ("suggest rows", "optional names", lambda m, x: m.suggest("f1", rows=x)),
    ("similar", "known feature", lambda m, x: m.similar(x)),
    ("explain row", "known row", lambda m, x: m.explain(x, "f1")),
    ("explain feature", "known feature", lambda m, x: m.explain("u1", x)),
    ("interval", "share", lambda m, x: m.predict(["u1"], ["f1"]).interval(x)),
    ("quantile", "share", lambda m, x: m.predict(["u1"], ["f1"]).quantile(x)),
    ("probability_above", "value", lambda m, x: m.predict(["u1"], ["f1"]).probability_above(x)),
    ("cell", "cell", lambda m, x: m.predict(["u1"], ["f1"])[x]),
    ("cell of a row", "known row", lambda m, x: m.predict(["u1"], ["f1"])[x, "f1"]),
    ("add_feature", "new name", lambda m, x: m.add_feature(x)),
    ("add_feature metadata", "optional", lambda m, x: m.add_feature("new", metadata=x)),
    ("add_feature observations", "optional observations", lambda m, x: m.add_feature("new", observations=x)),
    ("add_feature value", "rating", lambda m, x: m.add_feature("new", observations={"u1": x})),
    ("add_feature kind", "optional", lambda m, x: m.add_feature("new", kind=x)),
    ("add_features", "features", lambda m, x: m.add_features(x)),
    ("add_features parts", "parts", lambda m, x: m.add_features({"new": x})),
    ("year", "number", lambda m, x: m.add_feature("new", metadata={"year": x})),
    ("genre", "category", lambda m, x: m.add_feature("new", metadata={"genre": x})),
    ("tags", "labels", lambda m, x: m.add_feature("new", metadata={"tags": x})),
    ("tag", "category", lambda m, x: m.add_feature("new", metadata={"tags": ["a", x]})),
    ("released", "date", lambda m, x: m.add_feature("new", metadata={"released": x})),
    ("title", "text", lambda m, x: m.add_feature("new", metadata={"title": x})),
    ("vector", "vector", lambda m, x: m.add_feature("new", metadata={"vector": x})),
    ("vector number", "number", lambda m, x: m.add_feature("new", metadata={"vector": [1.0, x]})),
    ("add_row", "new name", lambda m, x: m.add_row(x)),
    ("add_row observations", "optional", lambda m, x: m.add_row("new", observations=x)),
    ("add_rows", "rows", lambda m, x: m.add_rows(x)),
    ("add_rows observations", "observations", lambda m, x: m.add_rows({"new": x})),
    ("add_rows update", "update", lambda m, x: m.add_rows({"new": {}}, update=x)),
    ("observe", "triples", lambda m, x: m.observe(x)),
    ("observe entry", "triple", lambda m, x: m.observe([x])),
    ("observe row", "known row", lambda m, x: m.observe([(x, "f1", 3), ("u2", "f1", 3)])),
    ("observe feature", "known feature", lambda m, x: m.observe([("u1", x, 3)])),
    ("observe value", "rating", lambda m, x: m.observe([("u1", "f1", x)])),
    ("observe time", "optional", lambda m, x: m.observe([("u1", "f1", 3)], time=x)),
    (
        "observe column",
        "optional",
        lambda m, x: m.observe(pd.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [3]}), row=x),
    ),
    (
        "observe missing",
        "optional codes",
        lambda m, x: m.observe(pd.DataFrame({"row": ["u1"], "feature": ["f1"], "value": [3]}), missing=x),
    ),
    ("observe weight", "weight", lambda m, x: m.observe([("u1", "f1", 3)], weight=x)),
    ("frame weight", "weight", lambda m, x: Table.read(frame_with("when", x), weight="when")),
    ("observe update", "update", lambda m, x: m.observe([("u1", "f1", 3)], update=x)),
    ("observe_feature", "known feature", lambda m, x: m.observe_feature(x, OBSERVED)),
    ("observe_feature observations", "observations", lambda m, x: m.observe_feature("f1", x)),
    ("observe_row", "known row", lambda m, x: m.observe_row(x, {"f1": 3})),
    ("observe_row observations", "observations", lambda m, x: m.observe_row("u1", x)),
    ("remove_feature", "known feature", lambda m, x: m.remove_feature(x)),
    ("rename_feature", "new name", lambda m, x: m.rename_feature("f1", x)),
    ("remove_row", "known row", lambda m, x: m.remove_row(x)),
    ("rename_row", "new name", lambda m, x: m.rename_row("u1", x)),
    ("evaluate", "table", lambda m, x: m.evaluate(x)),
    ("set_encoders", "encoders", lambda m, x: m.set_encoders(x)),
    ("load", "path", lambda m, x: Headstart.load(x)),
    ("save", "path to write", lambda m, x: m.save(x)),
    ("fit", "table", lambda m, x: Headstart(adapter="bayes", quiet=True).fit(x)),
    ("half_life", "duration", lambda m, x: Headstart(half_life=x).checked_settings()),
    ("adapter", "adapter", lambda m, x: Headstart(adapter=x).checked_settings()),
    ("backbone", "backbone", lambda m, x: Headstart(backbone=x).checked_settings()),
    ("random_state", "seed", lambda m, x: Headstart(random_state=x).checked_settings()),
    ("meta_share", "optional", lambda m, x: Headstart(meta_share=x).checked_settings()),
    ("read", "table", lambda m, x: Table.read(x)),
    ("read metadata", "row metadata", lambda m, x: Table.read(long_frame(), metadata=x)),
    ("read row_metadata", "row metadata", lambda m, x: Table.read(long_frame(), row_metadata=x)),
    ("read row", "optional", lambda m, x: Table.read(long_frame(), row=x)),
    ("read time", "optional", lambda m, x: Table.read(long_frame(), time=x)),
    ("read kinds", "optional", lambda m, x: Table.read(long_frame(), kinds=x)),
    ("read kind", "kind", lambda m, x: Table.read(long_frame(), kinds={"f1": x})),
    (
        "read metadata_types",
        "optional",
        lambda m, x: Table.read(long_frame(), metadata=films(), metadata_types=x),
    ),
    (
        "read type",
        "type",
        lambda m, x: Table.read(long_frame(), metadata=films(), metadata_types={"year": x}),
    ),
    ("read duplicates", "duplicates", lambda m, x: Table.read(long_frame(), duplicates=x)),
    ("read missing", "optional codes", lambda m, x: Table.read(long_frame(), missing=x)),
    ("read encoders", "optional", lambda m, x: Table.read(long_frame(), metadata=films(), encoders=x)),
    ("read separator", "optional", lambda m, x: Table.read(long_frame(), separator=x)),
    ("read encoding", "optional", lambda m, x: Table.read(long_frame(), encoding=x)),
    ("read form", "form", lambda m, x: Table.read(long_frame(), form=x)),
    ("frame row", "name", lambda m, x: Table.read(frame_with("row", x))),
    ("frame feature", "name", lambda m, x: Table.read(frame_with("feature", x))),
    ("frame value", "value missing", lambda m, x: Table.read(frame_with("value", x))),
    ("frame time", "time", lambda m, x: Table.read(frame_with("when", x), time="when")),
    ("frame metadata", "anything", lambda m, x: Table.read(long_frame(), metadata=films(extra=x))),
    ("with_features", "names", lambda m, x: made_up_table().with_features(x)),
    ("observations_of", "known feature", lambda m, x: made_up_table().observations_of(x)),
]


def long_frame() -> pd.DataFrame:
    return pd.DataFrame({"row": list("abcabc"), "feature": ["f1", "f2"] * 3, "value": [1, 2, 3, 4, 5, 1]})


def frame_with(column: str, value: Any) -> pd.DataFrame:
    """Return a long frame in which one cell of a column is this value."""
    data = long_frame().assign(when=[datetime.datetime(2024, 1, day) for day in range(1, 7)]).astype(object)
    cells = list(data[column])
    cells[3] = value
    data[column] = pd.Series(cells, dtype=object)
    return data


def films(extra: Any = 5) -> pd.DataFrame:
    return pd.DataFrame(
        {"feature": ["f1", "f2"], "year": [1990, 1991], "extra": pd.Series([extra, 5], dtype=object)}
    )


# The values that a place allows besides those that name it.
ALSO = {
    "known row": {"a dict", "an empty dict"},  # recommend and explain take observations of a new row
    "optional names": {
        "a frame whose index is a column",
        "a sparse frame",
        "an arrow table of unions",
        "an empty list",
        "an empty array",
        "None",
        "numpy text",
        "a dict",
        "a dict of dicts",
        "an empty dict",
        "a tuple",
        "a set",
        "a frozenset",
    },
    "names": {
        "an empty array",
        "an arrow table of unions",
        "a sparse frame",
        "a dict",
        "a dict of dicts",
        "an empty dict",
        "an empty list",
        "a tuple",
        "a set",
        "a frozenset",
        "an array without axes",
    },
    "optional codes": {
        "a surrogate",
        "None",
        "NaN",
        "inf",
        "a float",
        "a fraction",
        "a large whole number",
        "a huge whole number",
        "int8",
        "float16",
        "float32",
        "uint64",
        "numpy text",
        "an empty list",
        "an empty array",
        "a long whole number",
        "a range",
        "a set",
        "a frozenset",
        "a tuple",
        "a generator",
        "a list of NaN",
        "a number as text",
        "a long text",
        "markup",
        "a NUL",
        "a date as text",
        "an unknown name",
        "a Series",
        "a Series with a repeated index",
        "a polars Series",
    },
    "new name": {"a large whole number", "int8", "float16", "uint64", "numpy text", "a float"},
    "name": {
        "a huge whole number",
        "a float",
        "numpy text",
        "an unknown name",
        "a NUL",
        "a long text",
        "a number as text",
        "markup",
        "a date as text",
        "a tensor without axes",
    },
    "observations": {"an empty dict", "a frame without columns", "a sparse frame"},
    "optional": {"None", "an empty dict"},
    "optional observations": {"None", "a dict", "an empty dict", "a frame without columns"},
    "duration": {
        "None",
        "a float",
        "a fraction",
        "a large whole number",
        "int8",
        "float16",
        "float32",
        "uint64",
        "a timedelta",
        "a number as text",
    },
    "row metadata": {
        "a frame of periods",
        "an arrow table with a null type",
        "None",
        "a frame of lists",
        "a frame of structs",
        "a sparse frame",
        "a frame of decimals",
        "a frame of dates",
    },
    "rows": {"an empty dict"},
    "parts": {"an empty dict"},
    "features": {"an empty dict"},
    "triples": {"an empty list", "a tuple"},
    "labels": {
        "a Series",
        "a Series with a repeated index",
        "a polars Series",
        "an empty list",
        "a tuple",
        "a set",
        "a frozenset",
        "a range",
        "a list of None",
        "a list of NaN",
        "an empty array",
        "None",
        "numpy text",
        "an array of objects",
    },
    "category": {"numpy text"},
    "vector": {"None", "a Series with a repeated index", "a tensor"},
    "encoders": {"an empty dict"},
    "value missing": {
        "None",
        "NaN",
        "NaT",
        "NA",
        "datetime64 NaT",
        "True",
        "numpy bool",
        "a float",
        "a fraction",
        "int8",
        "float16",
        "float32",
        "Decimal",
        "Decimal NaN",
        "a number as text",
    },
    "count": {"a large whole number", "a huge whole number", "a long whole number", "uint64"},
    "seed": {"int8", "a float", "float16", "a large whole number"},
    "whole number": {"int8", "a large whole number"},
    "small count": {"int8"},
    "truth": {"True", "numpy bool"},
    "filter": {"None", "an empty dict"},
    "excluded": {
        "an empty dict",
        "an empty list",
        "an empty array",
    },
    "weight": {"None", "a float", "a fraction", "int8", "float16", "float32", "True", "numpy bool"},
}

MISSING = {"None", "NaN", "NaT", "NA", "datetime64 NaT", "Decimal NaN"}  # a missing value of metadata


def is_allowed(value: Odd, place: str) -> bool:
    if place in ("anything", "path to write"):
        return True
    if value.what in MISSING and place in ("number", "category", "labels", "date", "text", "vector"):
        return True
    return place in value.allowed or value.what in ALSO.get(place, ())


# --- outcomes -----------------------------------------------------------------------------------------


class HangError(BaseException):
    """The time is over."""


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome_of(call: Callable[[], Any], allowed: bool) -> tuple[str, str]:
    """Return the outcome of a call, and its message."""
    try:
        with deadline(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except HeadstartError as error:
        text = str(error)
        return (
            ("clear", text)
            if "\n" not in text and len(text) < 2000
            else ("raw", f"{len(text)}: {text[:300]}")
        )
    except HangError:
        return "hang", ""
    except (TypeError, Exception) as error:
        return "raw", f"{type(error).__name__}: {error}"[:300]
    return ("accepted" if allowed else "silent"), ""


def content(model: Headstart) -> tuple[Any, ...]:
    return tuple(model.features), tuple(model.rows), model.predict().mean.tobytes()


# --- the doors ----------------------------------------------------------------------------------------

Line = tuple[str, str, str, str]  # door, what, outcome, message


def python_round(chance: random.Random, cases: int, model: Headstart) -> Iterator[Line]:
    """Put values into all places of Python calls; ``cases`` of all pairs are drawn."""
    from copy import copy

    # Table.with_features takes any iterable; an endless one has no end.
    pairs = [(d, value) for d in DOORS for value in ODD if (d[0], value.make) != ("with_features", endless)]
    before = content(model)
    for (what, place, call), value in chance.sample(pairs, min(cases, len(pairs))):
        own = copy(model)
        with tempfile.TemporaryDirectory() as folder:
            here = os.getcwd()
            os.chdir(folder)
            try:
                outcome, message = outcome_of(
                    lambda c=call, m=own, v=value: c(m, v.make()), is_allowed(value, place)
                )
            finally:
                os.chdir(here)
        if outcome == "clear" and content(own) != before:
            outcome = "changed"
        yield "python", f"{what} <- {value.what}", outcome, message


GOOD = "row,feature,value\n" + "".join(f"u{i % 9},f{i % 7},{1 + i % 5}\n" for i in range(63))


def mutate(chance: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to three mutations."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        data = chance.choice(
            [
                lambda d=data, i=at: d[:i] + bytes([chance.randrange(256)]) + d[i + 1 :],
                lambda d=data, i=at: d[:i],
                lambda d=data, i=at: d[:i] + b"\x00" + d[i:],
                lambda d=data, i=at: d[:i] + b'"' + d[i:],
                lambda d=data, i=at: d[:i] + "é".encode("latin-1") + d[i:],
                lambda d=data, i=at: d[:i] + d[i:].replace(b"\n", b"\r", 3),
                lambda d=data, i=at: d[:i] + b"," * chance.randint(1, 300) + d[i:],
                lambda d=data, i=at: d[:i] + b"9" * chance.choice([20, 400, 200_000]) + d[i:],
                lambda d=data, i=at: (
                    d[:i] + chance.choice([b"nan", b"inf", b"-1e999", b"TRUE", b"1,5", b"-9"]) + d[i:]
                ),
                lambda d=data, i=at: d[i:] + d[:i],
                lambda d=data: d * 2,
            ]
        )()
    return data


def file_round(chance: random.Random, cases: int) -> Iterator[Line]:
    """Read mutated files as observations and as metadata."""
    buffer = io.BytesIO()
    pq.write_table(
        pa.csv.read_csv(io.BytesIO(GOOD.encode())) if hasattr(pa, "csv") else pa.table({"row": [1]}), buffer
    )
    import gzip

    contents = {
        "a.csv": GOOD.encode(),
        "a.tsv": GOOD.replace(",", "\t").encode(),
        "wide.csv": b"row,"
        + b",".join(b"f%d" % j for j in range(9))
        + b"\n"
        + b"u,1,2,3,4,5,1,2,3,4\nv,,,,,,1,2,3,4\n",
        "a.csv.gz": gzip.compress(GOOD.encode()),
        "a.parquet": buffer.getvalue(),
        "films.csv": b"feature,year,genre\n" + b"".join(b"f%d,%d,drama\n" % (j, 1990 + j) for j in range(7)),
    }
    contents |= survey_files()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(cases):
            name = chance.choice(list(contents))
            path = Path(folder) / f"{number}-{name}"
            path.write_bytes(mutate(chance, contents[name]))
            if name == "films.csv":
                outcome, message = outcome_of(lambda p=path: Table.read(long_frame(), metadata=p), True)
            else:
                outcome, message = outcome_of(lambda p=path: sound(Table.read(p)), True)
            yield "file", f"{name} {number}", outcome, message
            path.unlink()


def survey_files() -> dict[str, bytes]:
    """Return files of SPSS, Stata and Excel, as far as the packages that write them are installed."""
    wide = pd.DataFrame({"row": [f"u{i}" for i in range(9)], "q1": [1.0, 2, 3] * 3, "q2": [4.0, 5, 1] * 3})
    contents = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        try:
            import pyreadstat

            labels = {"q1": {1.0: "never", 2.0: "often", 3.0: "always"}}
            pyreadstat.write_sav(wide, str(path / "a.sav"), variable_value_labels=labels)
            pyreadstat.write_dta(wide, str(path / "a.dta"), variable_value_labels=labels)
        except ImportError:
            pass
        with suppress(ImportError):
            wide.to_excel(path / "a.xlsx", index=False)
        for file in path.iterdir():
            contents[file.name] = file.read_bytes()
    return contents


def sound(table: Table) -> None:
    """Raise an error unless the table holds finite values and names."""
    if not np.isfinite(table.values).all() or not all(table.rows) or not all(table.features):
        raise AssertionError("the table is not sound")


TEXTS = [
    "",
    " ",
    "nobody",
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "9" * 30,
    "é",
    "a,b",
    "=",
    "a=",
    "=b",
    "{}",
    "[]",
    "null",
    "{",
    '{"year": "x"}',
    "--",
    "-",
    "/",
    "/dev/null",
    "/nowhere/x.csv",
    "x.csv",
    "m",
    "\x00",
    "x" * 5000,
    "u1,,u1",
    "None",
    "*",
    "$(ls)",
    "%s",
    "\\",
    "'",
    '"',
    "rating:1:",
    "rating:5:1",
    "real:0:0",
    "2**53",
    "0.9999999999999999",
    "films.csv",
    "pipe.csv",
]

COMMANDS = [
    ["fit", "{}", "--out", "x"],
    ["fit", "a.csv", "--out", "{}"],
    ["fit", "a.csv", "--out", "x", "--kind", "{}"],
    ["fit", "a.csv", "--out", "x", "--metadata", "{}"],
    ["fit", "a.csv", "--out", "x", "--row", "{}"],
    ["fit", "a.csv", "--out", "x", "--time", "{}"],
    ["fit", "a.csv", "--out", "x", "--half-life", "{}"],
    ["fit", "a.csv", "--out", "x", "--adapter", "{}"],
    ["fit", "a.csv", "--out", "x", "--set", "{}"],
    ["fit", "a.csv", "--out", "x", "--missing", "{}", "--kind", "binary"],
    ["fit", "a.csv", "--out", "x", "--encoding", "{}"],
    ["fit", "a.csv", "--out", "x", "--separator", "{}"],
    ["fit", "a.csv", "--out", "x", "--duplicates", "{}"],
    ["fit", "a.csv", "--out", "x", "--row-metadata", "{}"],
    ["fit", "a.csv", "--out", "x", "--device", "{}"],
    ["predict", "{}"],
    ["predict", "m", "--rows", "{}"],
    ["predict", "m", "--features", "{}"],
    ["predict", "m", "--level", "{}"],
    ["predict", "m", "--new-rows", "{}"],
    ["predict", "m", "--rows", "u1", "--out", "{}"],
    ["recommend", "m", "{}"],
    ["recommend", "m", "u1", "--by", "{}"],
    ["recommend", "m", "u1", "-n", "{}"],
    ["audience", "m", "{}"],
    ["suggest", "m", "{}"],
    ["similar", "m", "{}"],
    ["explain", "m", "{}", "f1"],
    ["explain", "m", "u1", "{}"],
    ["explain", "m", "u1", "f1", "--picture", "{}"],
    ["add-feature", "m", "{}", "--kind", "nothing"],
    ["add-feature", "m", "new", "--metadata", "{}", "--kind", "nothing"],
    ["add-feature", "m", "new", "--observations", "{}", "--kind", "nothing"],
    ["add-row", "m", "u1", "--observations", "{}"],
    ["add-rows", "m", "{}"],
    ["observe", "m", "{}"],
    ["observe", "m", "a.csv", "--row", "{}", "--update", "nothing"],
    ["observe", "m", "a.csv", "--time", "{}"],
    ["observe-feature", "m", "{}", "a.csv"],
    ["observe-row", "m", "u1", "{}"],
    ["remove", "m", "--rows", "{}"],
    ["remove", "m", "--features", "{}"],
    ["rename-row", "m", "u1", "{}"],
    ["rename-feature", "m", "{}", "f2"],
    ["features", "m", "--format", "{}"],
    ["rows", "{}"],
    ["info", "{}"],
    ["check", "{}"],
    ["export", "m", "--out", "{}"],
    ["export", "--store", "{}", "--out", "x.csv"],
    ["evaluate", "m", "{}"],
    ["evaluate", "m", "a.csv", "--shots", "{}"],
    ["{}"],
    ["benchmark", "{}", "--out", "x"],
    ["token", "list", "--store", "{}"],
]


def command_round(chance: random.Random, cases: int, model: Headstart) -> Iterator[Line]:
    """Put texts into the arguments of commands."""
    pairs = [(command, text) for command in COMMANDS for text in TEXTS]
    for command, text in chance.sample(pairs, min(cases, len(pairs))):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            model.save(folder / "m")
            (folder / "a.csv").write_text(GOOD)
            (folder / "films.csv").write_text("feature,year\nf1,1990\n")
            os.mkfifo(folder / "pipe.csv")
            arguments = [part.replace("{}", text) if part == "{}" else part for part in command]
            try:
                with deadline(SECONDS), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    done = run(*arguments, cwd=folder)
                message, outcome = done.stderr, "clear"
                if done.returncode == 0:
                    outcome = "accepted"
                elif "Traceback" in message or (
                    done.returncode == 1 and not message.startswith(("error: ", "note: "))
                ):
                    outcome = "raw"
            except HangError:
                outcome, message = "hang", ""
            except Exception as error:
                outcome, message = "raw", f"{type(error).__name__}: {error}"[:300]
            yield "command", " ".join(arguments)[:80], outcome, message


JSON: list[Any] = [
    None,
    True,
    0,
    -1,
    2.5,
    1e308,
    2**63,
    10**30,
    "",
    " ",
    "nobody",
    "u1",
    "\x00",
    "x" * 600,
    "é" * 400,
    [],
    [[]],
    [None],
    ["u1", "u1"],
    {},
    {"u1": 3},
    {"u1": "3"},
    {"u1": {"f1": 3}},
    {"": 1},
    "2024-13-01",
    "<b>",
    "..",
    ".",
]

REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/observations", {"observations": [{"row": "u1", "feature": "f1", "value": 3}]}),
    (
        "POST",
        "/v1/features",
        {"name": "new", "metadata": {"year": 3}, "observations": {"u1": 3}, "kind": "rating:1:5"},
    ),
    ("POST", "/v1/rows", {"name": "new", "observations": {"f1": 3}}),
    ("POST", "/v1/predict", {"rows": ["u1"], "features": ["f1"], "level": 0.9, "form": "cells"}),
    (
        "POST",
        "/v1/recommend",
        {"row": "u1", "n": 3, "features": ["f1"], "by": "mean", "quantile": 0.9, "level": 0.9},
    ),
    ("POST", "/v1/audience", {"feature": "f1", "n": 3, "rows": ["u1"], "by": "mean"}),
    ("POST", "/v1/suggest", {"feature": "f1", "n": 3, "rows": ["u1"]}),
    ("POST", "/v1/similar", {"feature": "f1", "n": 3}),
    ("POST", "/v1/explain", {"row": "u1", "feature": "f1", "n": 3}),
    ("POST", "/v1/model", {"path": "/nowhere"}),
]


def places(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all parts of a JSON value."""
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [path, *(inner for key, value in items for inner in places(value, (*path, key)))]


def replaced(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    inner = replaced(body[path[0]], path[1:], value)
    if isinstance(body, dict):
        return {**body, path[0]: inner}
    return [inner if i == path[0] else part for i, part in enumerate(body)]


def request_round(chance: random.Random, cases: int, model: Headstart) -> Iterator[Line]:
    """Put JSON values into all parts of bodies, and names into addresses."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        app = create_app(Path(folder) / "m", f"sqlite:///{folder}/store.db", ServiceSettings())
        with TestClient(app, raise_server_exceptions=False) as client:
            app.service.wait()
            for _ in range(cases):
                method, address, body = chance.choice(REQUESTS)
                path, value = chance.choice(places(body)), chance.choice(JSON)
                sent = replaced(body, path, value)
                if chance.random() < 0.15:
                    method, sent = chance.choice(["GET", "DELETE", "PATCH"]), None
                    address = (
                        f"/v1/{chance.choice(['rows', 'features'])}/{chance.choice(TEXTS[:20])[:80]}".replace(
                            "\x00", "%00"
                        )
                    )
                try:
                    with deadline(SECONDS):
                        answer = (
                            client.request(method, address, json=sent)
                            if sent is not None
                            else client.request(method, address)
                        )
                    problem = answer.status_code >= 400
                    clear = not problem or bool(answer.json().get("detail"))
                    outcome = (
                        "raw"
                        if answer.status_code >= 500 or not clear
                        else "clear"
                        if problem
                        else "accepted"
                    )
                    message = f"{answer.status_code} {answer.text[:200]}"
                except HangError:
                    outcome, message = "hang", ""
                except Exception as error:
                    outcome, message = "raw", f"{type(error).__name__}: {error}"[:300]
                yield "request", f"{method} {address} {path} <- {str(value)[:40]}", outcome, message


def main() -> None:
    """Run all rounds and print the counts, and every input whose outcome is not clear."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1500, help="half of them in Python, the rest shared")
    parser.add_argument("--only", choices=["python", "file", "command", "request"])
    chosen = parser.parse_args()
    model = Headstart(adapter="bayes", quiet=True).fit(made_up_table())
    rounds = {
        "python": lambda c: python_round(c, chosen.cases // 2, model),
        "file": lambda c: file_round(c, chosen.cases // 6),
        "command": lambda c: command_round(c, chosen.cases // 6, model),
        "request": lambda c: request_round(c, chosen.cases // 6, model),
    }
    counts: Counter[tuple[str, str]] = Counter()
    for name, start in rounds.items():
        if chosen.only not in (None, name):
            continue
        for door, what, outcome, message in start(random.Random(f"{name} {chosen.seed}")):
            counts[door, outcome] += 1
            if outcome not in ("clear", "accepted"):
                print(f"{outcome}: {door}: {what}: {message[-300:]!r}", flush=True)
    for (door, outcome), count in sorted(counts.items()):
        print(f"{door:8} {outcome:9} {count}")


if __name__ == "__main__":
    main()
