"""Frames and files that must be refused."""

from __future__ import annotations

import datetime
import gzip
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

NAN, INF = float("nan"), float("inf")
Case = tuple[str, Callable[[], Any], dict[str, Any], str]  # what, frame, arguments of Table.read, message


def frame(**columns: Any) -> pa.Table:
    return pa.table({"row": ["a", "b"], "feature": ["x", "y"], "value": [1.0, 2.0]} | columns)


def wide(**columns: Any) -> pa.Table:
    return pa.table({"row": ["a", "b"], "x": [1.0, 2.0], "y": [3.0, 4.0]} | columns)


def described(**columns: Any) -> dict[str, Any]:
    return {"metadata": pa.table({"feature": ["x", "y"], "year": [1, 2]} | columns)}


# --- frames -------------------------------------------------------------------------------------------

NO_FRAMES: list[Case] = [
    (
        type(given).__name__,
        lambda g=given: g,
        {},
        f"expected a path or a pandas, polars or pyarrow frame; got {name}",
    )
    for given, name in [
        (None, "NoneType"),
        (5, "int"),
        ({"row": [1]}, "dict"),
        ([1, 2], "list"),
        (np.datetime64(0, "s"), "datetime64"),
        (b"a.csv", "bytes"),
        (pd.Series([1.0]), "Series"),
    ]
]
NO_NAMES: list[Case] = [
    (f"{column}-{what}", lambda c=column, n=names: frame(**{c: n}), {}, message.format(noun=column))
    for column in ("row", "feature")
    for what, names, message in [
        ("null", ["x", None], "record 2: the name of the {noun} is missing"),
        ("empty", ["", "x"], "record 1: '' cannot be a {noun}"),
        ("spaces", ["x", "  "], "record 2: '  ' cannot be a {noun}"),
        ("fraction", [1.0, 1.5], "record 2: 1.5 cannot be a {noun}"),
        ("nan", pa.array([1.0, NAN]), "record 2: nan cannot be a {noun}"),
        ("large", [1.0, 2.0**60], "record 2: 1.152921504606847e+18 cannot be a {noun}"),
        ("large float32", pa.array([1.0, 2.0**24], pa.float32()), "record 2: 16777216.0 cannot be a {noun}"),
        ("bool", [True, False], "record 1: True cannot be a {noun}"),
        ("bytes", [b"x", b"y"], "record 1: b'x' cannot be a {noun}"),
        ("date", [datetime.date(2026, 1, 1)] * 2, "record 1: datetime.date(2026, 1, 1) cannot be a {noun}"),
        ("list", [["x"], ["y"]], "record 1: ['x'] cannot be a {noun}"),
        ("struct", [{"a": 1}, {"a": 2}], "record 1: {{'a': 1}} cannot be a {noun}"),
        (
            "broken text",
            pa.array([b"\xff", b"y"]).view(pa.string()),
            "{noun} is not valid UTF-8 text: b'\\xff'",
        ),
    ]
]
NO_VALUES: list[Case] = [
    (f"{form}-{what}", lambda m=make, c=column, v=values: m(**{c: v}), {}, message.format(column=column))
    for form, make, column in (("long", frame, "value"), ("wide", wide, "x"))
    for what, values, message in [
        ("text", ["good", "good"], "column '{column}' contains text, such as 'good'"),
        ("numbers as text", ["1", "2"], "column '{column}' contains text, such as '1'"),
        ("text among numbers", ["1", "bad"], "column '{column}' contains text among numbers, such as 'bad'"),
        ("dates", [datetime.date(2026, 1, 1)] * 2, "column '{column}' contains date32[day]"),
        ("lists", [[1.0], [2.0]], "column '{column}' contains list"),
        ("bytes", [b"1", b"2"], "column '{column}' contains binary"),
        ("nan", pa.array([1.0, NAN]), "row 'b', feature "),
        ("inf", [1.0, -INF], "is -inf; values must be finite numbers"),
    ]
]
COLUMNS: list[Case] = [
    (
        "no row",
        lambda: frame().drop(["row"]),
        {},
        "the frame has no column 'row' (row='row'); its columns are",
    ),
    ("no feature", lambda: frame().drop(["feature"]), {}, "no column 'feature' (feature='feature')"),
    ("no value", lambda: frame().drop(["value"]), {}, "no column 'value' (value='value')"),
    (
        "other row",
        frame,
        {"row": "rwo"},
        "no column 'rwo' (row='rwo'); its columns are 'row', 'feature', 'value'; did",
    ),
    ("other feature", frame, {"feature": "film"}, "no column 'film' (feature='film')"),
    ("other value", frame, {"value": "valeu"}, "did you mean 'value'?"),
    (
        "wide, no feature",
        wide,
        {"feature": "film"},
        "no column 'film' (feature='film'); its columns are 'row', 'x', 'y'",
    ),
    ("wide, the usual feature", wide, {"feature": "feature"}, "no column 'feature' (feature='feature')"),
    (
        "wide, no value",
        wide,
        {"value": "stars"},
        "no column 'stars' (value='stars'); its columns are 'row', 'x', 'y'",
    ),
    ("form wide, no value", wide, {"value": "stars", "form": "wide"}, "no column 'stars' (value='stars')"),
    ("form wide, no feature", wide, {"feature": "film", "form": "wide"}, "no column 'film' (feature='film')"),
    (
        "wide, other metadata",
        wide,
        {"feature": "f", "metadata": pa.table({"f": ["z"]})},
        "no column 'f' (feature='f')",
    ),
    ("wide, other row", wide, {"row": "user"}, "no column 'user' (row='user')"),
    ("row alone", lambda: pa.table({"row": [1]}), {}, "no column besides 'row'"),
    (
        "the same column",
        frame,
        {"feature": "row"},
        "must be three different columns; got 'row', 'row', 'value'",
    ),
    ("the same tidy column", frame, {"feature": " row"}, "must be three different columns"),
    ("column as list", frame, {"row": ["row"]}, "['row'] cannot be a column name"),
    ("column without a name", frame, {"value": " "}, "' ' cannot be a column name"),
    ("column twice", lambda: pa.table([[1], [1], [2]], names=["row", "x", "x"]), {}, "'x'"),
    ("two spellings", lambda: wide(**{" x": [1, 2]}), {}, "column called 'x' (written as ' x', 'x')"),
    (
        "two Unicode forms",
        lambda: wide(**{"é": [1, 2], "e\u0301": [1, 2]}),
        {},
        "more than one column called 'é'",
    ),
    (
        "7 and 7.0",
        lambda: wide(**{"7": [1, 2], "7.0": [1, 2]}),
        {},
        "column called '7' (written as '7', '7.0')",
    ),
    (
        "tuple as column",
        lambda: pd.DataFrame([[1]], columns=[("a", "b")]),
        {},
        "('a', 'b') cannot be a column name",
    ),
    ("no observation", lambda: frame().slice(0, 0), {}, "the frame contains no observations"),
    ("only nulls", lambda: frame(value=pa.nulls(2)), {}, "the frame contains no observations"),
    (
        "unreadable objects",
        lambda: pd.DataFrame({"row": [{}, 1], "x": [1, 2]}),
        {},
        "column 'row' cannot be read",
    ),
    (
        "pandas surrogate",
        lambda: pd.DataFrame({"row": pd.Series(["\udcff"], dtype=object), "x": [1]}),
        {},
        "'\\udcff' cannot be",
    ),
    ("polars list", lambda: pl.DataFrame({"row": [[1]], "x": [1]}), {}, "[1] cannot be a row"),
]
SAME = {"row": ["a", "a"], "feature": ["x", "x"]}
CONTENT: list[Case] = [
    (
        "twice",
        lambda: frame(**SAME),
        {},
        "row 'a', feature 'x' is observed twice, as 1 and 2; correct the data or use",
    ),
    (
        "twice in two spellings",
        lambda: frame(row=["a", "a "], feature=["x", "x"]),
        {},
        "as 1 and 2 (row 'a' is written as 'a' and 'a ')",
    ),
    (
        "twice in two Unicode forms",
        lambda: frame(row=["a", "a"], feature=["é", "e\u0301"]),
        {},
        "(feature 'é' is written as 'é' and 'e\\u0301')",
    ),
    ("too large", lambda: frame(feature=["x", "x"], value=[1e308, -1e308]), {}, "too large to be scaled"),
    ("form", frame, {"form": "broad"}, "form must be 'auto', 'long' or 'wide'; got 'broad'"),
    (
        "duplicates",
        frame,
        {"duplicates": "first"},
        "duplicates must be one of error, last, mean, sum; got 'first'",
    ),
    ("separator of a frame", frame, {"separator": ";"}, "is not a text file"),
    ("decimal of a frame", frame, {"decimal": ","}, "is not a text file"),
    ("encoding of a frame", frame, {"encoding": "latin-1"}, "is not a text file"),
    ("long separator", frame, {"separator": ";;"}, "separator must be one character, such as ';'; got ';;'"),
    ("quote as separator", frame, {"separator": '"'}, "separator must be one character"),
    ("number as separator", frame, {"separator": 5}, "separator must be one character, such as ';'; got 5"),
    ("digit as decimal point", frame, {"decimal": "5"}, "decimal must be a point or a comma; got '5'"),
    (
        "the same",
        frame,
        {"separator": ",", "decimal": ","},
        "the separator and the decimal point cannot both be ','",
    ),
    ("encoding", frame, {"encoding": "latn-1"}, "encoding 'latn-1' is unknown; did you mean"),
    ("codec that is no text", frame, {"encoding": "base64"}, "encoding 'base64' is unknown"),
    ("number as encoding", frame, {"encoding": 8}, "encoding 8 is unknown"),
]
KINDS: list[Case] = [
    (
        "kind",
        frame,
        {"kinds": "ratng"},
        "'ratng' is not a kind (binary, rating, real",
    ),
    ("list", frame, {"kinds": ["real"]}, "a kind is a text such as 'rating:1:5'; got ['real']"),
    ("number", frame, {"kinds": {"x": 5}}, "a kind is a text such as 'rating:1:5'; got 5"),
    ("feature", frame, {"kinds": {"z": "real"}}, "unknown feature 'z'"),
    (
        "two spellings",
        frame,
        {"kinds": {"x": "real", " x": "binary"}},
        "a feature twice, in two spellings: 'x', ' x'",
    ),
    ("no binary", frame, {"kinds": "binary"}, "row 'b', feature 'y': the value 2 must be 0 or 1"),
    (
        "what to write",
        frame,
        {"kinds": "binary"},
        "give this feature another kind, as in kinds={'y': 'real'}",
    ),
    ("outside", frame, {"kinds": {"y": "rating:3:5"}}, "feature 'y': the value 2 must be from 3 to 5"),
    (
        "outside all",
        frame,
        {"kinds": {None: "rating:3:5", "y": "real"}},
        "feature 'x': the value 1 must be from 3 to 5",
    ),
    (
        "constant rating",
        lambda: frame(value=[2.0, 2.0]),
        {"kinds": "rating"},
        "all values of the table are 2; give",
    ),
    (
        "no others",
        frame,
        {"kinds": {None: "rating", "x": "real", "y": "real"}},
        "the other features have no observations",
    ),
    *[
        (f"limits {text}", frame, {"kinds": text}, text)
        for text in ("rating:1", "real:1", "binary:1:2", "rating:x:y")
    ],
]
METADATA: list[Case] = [
    (
        "no frame",
        frame,
        {"metadata": {"feature": ["x"]}},
        "expected a path or a pandas, polars or pyarrow frame; got dict",
    ),
    ("no feature", frame, {"metadata": pa.table({"film": ["x"]})}, "no column 'feature' (feature='feature')"),
    ("no name", frame, described(feature=["x", None]), "record 2: the name of the feature is missing"),
    ("name", frame, described(feature=["x", ""]), "record 2: '' cannot be a feature"),
    (
        "two lines",
        frame,
        described(feature=["x", "x"]),
        "'x' has two lines of metadata that differ in column 'year': 1 and 2",
    ),
    (
        "two spellings",
        frame,
        described(feature=["x", " x"]),
        "'x' has two lines of metadata that differ in column 'year'",
    ),
    ("nan", frame, described(year=pa.array([1.0, NAN])), "metadata of feature 'y': 'year' is nan"),
    ("inf", frame, described(year=[1.0, INF]), "metadata of feature 'y': 'year' is inf"),
    ("columns", frame, described(**{" year": [1, 2]}), "column called 'year' (written as ' year', 'year')"),
    (
        "type",
        frame,
        described() | {"metadata_types": {"year": "nubmer"}},
        "metadata column 'year': 'nubmer' is not a type",
    ),
    (
        "typed column",
        frame,
        described() | {"metadata_types": {"yaer": "date"}},
        "no column 'yaer'; did you mean 'year'?",
    ),
    ("types", frame, described() | {"metadata_types": ["year"]}, "metadata_types must map columns to types"),
    (
        "types of nothing",
        frame,
        {"metadata_types": {"year": "date"}},
        "no columns of metadata to apply it to",
    ),
    (
        "size",
        frame,
        described() | {"metadata_types": {"year": "number:3"}},
        "take an argument, as text:128",
    ),
    (
        "no size",
        frame,
        described(year=["a", "b"]) | {"metadata_types": {"year": "text:0"}},
        "text:0 is not a type; text:128 has 128 buckets",
    ),
    (
        "vectors",
        frame,
        described(year=[[1.5], [1.5, 2.5]]) | {"metadata_types": {"year": "vector"}},
        "same length",
    ),
    *[
        (
            f"text:{size}",
            frame,
            described(year=["a", "b"]) | {"metadata_types": {"year": f"text:{size}"}},
            "is too large",
        )
        for size in ("1000000000", "16385", "9" * 5000)
    ],
    *[
        (
            f"as {text}",
            frame,
            described(year=[value, value]) | {"metadata_types": {"year": text}},
            "metadata 'year' must be",
        )
        for text, value in [
            ("number", "a"),
            ("date", "a"),
            ("labels", 1.5),
            ("text", 1),
            ("vector", "a"),
            ("vector", [NAN]),
        ]
    ],
]


def frame_cases() -> list[Case]:
    """Return all cases, with names that say where they are from."""
    groups = {"frame": NO_FRAMES, "name": NO_NAMES, "value": NO_VALUES, "column": COLUMNS, "content": CONTENT}
    groups |= {"kinds": KINDS, "metadata": METADATA}
    return [(f"{group}-{what}", *rest) for group, cases in groups.items() for what, *rest in cases]


# --- files --------------------------------------------------------------------------------------------


def parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


LINES = b"row,feature,value\n" + b"".join(b"u%d,x,1\n" % i for i in range(5000))
GZIP = gzip.compress(LINES, mtime=0)
FLIPPED = GZIP[: len(GZIP) // 2] + bytes([GZIP[len(GZIP) // 2] ^ 255]) + GZIP[len(GZIP) // 2 + 1 :]
PARQUET = parquet(pa.table({"row": range(5000), "feature": ["x"] * 5000, "value": np.arange(5000.0)}))
MIDDLE = len(PARQUET) // 3
# name, content, arguments of Table.read, message; the message must also contain the path
FILES: list[tuple[str, bytes, dict[str, Any], str]] = [
    ("a.csv", b"", {}, "is empty; expected a header"),
    ("a.csv", b"\n\n\n", {}, "is empty; expected a header"),
    ("a.csv", b"\xef\xbb\xbf", {}, "is empty; expected a header"),
    ("a.csv", b"row,feature,value\n", {}, "contains no observations"),
    ("a.csv", b"row,feature,value\na,x,NA\n", {}, "contains no observations"),
    ("a.csv", b"row,feature,value\na,x,1\nb,x\n", {}, "line 3 has 2 fields where 3 were expected: 'b,x'"),
    ("a.csv", b"row,feature,value\na,x,1\n\nb,x,1,9\n", {}, "line 4 has 4 fields where 3 were expected"),
    ("a.csv", b"row;feature;value\na;x;1\nb;x\n", {}, "line 3 has 2 fields where 3 were expected: 'b;x'"),
    ("a.csv", b'row,feature,value\na,x,1\n"b,x,1\n', {}, "line 3 has 1 fields where 3 were expected"),
    (
        "a.csv",
        b"row,feature,value\na,x,good\n",
        {},
        "line 2: 'good' in column 'value' is not a number (row 'a', feature 'x')",
    ),
    ("a.csv", b"row,x,y\na,1,\nb,,good\n", {}, "line 3: 'good' in column 'y' is not a number (row 'b')"),
    ("a.csv", b"row,feature,value\na,x,nan\n", {}, "row 'a', feature 'x' is nan"),
    ("a.csv", b"row,feature,value\na,x,1e999\n", {}, "row 'a', feature 'x' is inf"),
    ("a.csv", b"row,feature,value\n,x,1\n", {}, "line 2: '' cannot be a row"),
    ("a.csv", b"row,feature,value\na,x,1\nb, ,1\n", {}, "line 3: ' ' cannot be a feature"),
    (
        "a.csv",
        b"user,film,stars\na,x,1\n",
        {},
        "no column 'row' (row='row'); its columns are 'user', 'film', 'stars'",
    ),
    ("a.csv", b"row,film,stars\na,1,1\n", {"feature": "flim"}, "no column 'flim' (feature='flim')"),
    ("a.csv", b"row,film,stars\na,1,1\n", {"value": "satrs"}, "no column 'satrs' (value='satrs')"),
    ("a.csv", b"row,x,x\na,1,2\n", {}, "more than one column called 'x'"),
    ("a.csv", b"row,x, x\na,1,2\n", {}, "more than one column called 'x' (written as ' x', 'x')"),
    ("a.csv", b"row,,\na,1,2\n", {}, "more than one column called ''"),
    (
        "a.csv",
        "row,feature,value\nzo\u00e9,x,1\n".encode("latin-1"),
        {},
        "name its encoding, as in encoding='latin-1'",
    ),
    ("a.csv", "r\u00f4w,feature,value\na,x,1\n".encode("latin-1"), {}, "it is not UTF-8 text"),
    ("a.csv", "row,feature,value\na,x,1\n".encode("utf-16"), {}, "it is not UTF-8 text"),
    ("a.csv", "row,feature,value\nzo\u00e9,x,1\n".encode(), {"encoding": "ascii"}, "it is not ascii text"),
    (
        "a.csv",
        b"row;feature;value\na;x;1,5\n",
        {},
        "'1,5' in column 'value' is not a number (row 'a', feature 'x'); use decimal=','",
    ),
    (
        "a.csv",
        b"row;feature;value\na;x;1.5\n",
        {"decimal": ","},
        "is not a number (row 'a', feature 'x'); use decimal='.'",
    ),
    ("a.csv", b"row;feature;value\na;x;1\n", {"separator": ","}, "its columns are 'row;feature;value'"),
    ("a.csv", b"row,feature,value\na,x,1\n", {"separator": "tab"}, "its columns are 'row,feature,value'"),
    (
        "a.csv",
        b"row,feature,value\na,x,1\na ,x,2\n",
        {},
        "row 'a', feature 'x' is observed twice, as 1 and 2 (row 'a' is",
    ),
    ("a.tsv", b"row\tfeature\tvalue\na\tx\n", {}, "line 2 has 2 fields where 3 were expected"),
    ("a.csv", b"row,feature,value\na,x," + b"9" * 200_000 + b"x\n", {}, "field larger than field limit"),
    ("a.csv.gz", LINES, {}, "cannot be read: Not a gzipped file"),
    ("a.csv.gz", b"", {}, "is empty; expected a header"),
    ("a.csv.gz", GZIP[:9], {}, "cannot be read: Compressed file ended"),
    ("a.csv.gz", GZIP[: len(GZIP) // 2], {}, "cannot be read: "),
    ("a.csv.gz", GZIP[:-4], {}, "cannot be read: "),
    ("a.csv.gz", FLIPPED, {}, "cannot be read: "),
    ("a.csv.gz", GZIP[:20] + b"x" * 200, {}, "cannot be read: "),
    ("a.parquet", b"", {}, "is not a readable Parquet file"),
    ("a.parquet", LINES, {}, "is not a readable Parquet file"),
    ("a.parquet", PARQUET[: len(PARQUET) // 2], {}, "is not a readable Parquet file"),
    ("a.parquet", PARQUET[:-1], {}, "is not a readable Parquet file"),
    (
        "a.parquet",
        PARQUET[:MIDDLE] + b"\0" * 400 + PARQUET[MIDDLE + 400 :],
        {},
        "is not a readable Parquet file",
    ),
    (
        "a.parquet",
        parquet(pa.table({"row": ["a"], "feature": ["x"], "value": ["good"]})),
        {},
        "contains text, such as 'good'",
    ),
    (
        "a.parquet",
        parquet(pa.table({"row": ["a"], "x": [1], " x": [2]})),
        {},
        "called 'x' (written as ' x', 'x')",
    ),
    ("a.parquet", parquet(pa.table({"row": ["a"], "x": [1]})), {"separator": ";"}, "is not a text file"),
    ("a.xls", b"PK", {}, "has an unsupported file type; expected .csv"),
    ("a", b"row,x\na,1\n", {}, "has an unsupported file type; expected .csv"),
    ("a.csv.bz2", b"", {}, "has an unsupported file type; expected .csv"),
]
