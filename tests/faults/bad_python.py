"""Python calls that must be refused: (what, call, a part of the message)."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headstart import Headstart
from headstart.table import Kind

Case = tuple[str, Callable[[Headstart], Any], str]

NAN, INF = float("nan"), float("inf")

# --- names --------------------------------------------------------------------------------------------

# Things that are no name of a row or feature, and what the message says of them.
NO_NAMES: dict[str, tuple[Any, str]] = {
    "empty": ("", "'' cannot be a {noun}"),
    "spaces": ("  \t", "cannot be a {noun}"),
    "True": (True, "True cannot be a {noun}"),
    "fraction": (1.5, "1.5 cannot be a {noun}"),
    "nan": (NAN, "nan cannot be a {noun}"),
    "inf": (INF, "inf cannot be a {noun}"),
    "bytes": (b"f1", "b'f1' cannot be a {noun}"),
    "tuple": (("f1",), "('f1',) cannot be a {noun}"),
    "surrogate": ("f\udcff", "'f\\udcff' cannot be a {noun}: it has bytes that are not valid UTF-8"),
    "large float": (2.0**53, "9007199254740992.0 cannot be a {noun}: decimal numbers of this size"),
    "large float32": (np.float32(2**24), "16777216.0 cannot be a {noun}: decimal numbers of this size"),
    "huge number": (10**5000, "a whole number of more than 4096 bits cannot be a {noun}"),
    "date": (datetime.date(2026, 1, 1), "datetime.date(2026, 1, 1) cannot be a {noun}"),
}
# Where a name comes in, and what it names there.
NAME_CALLS: dict[str, tuple[Callable[[Headstart, Any], Any], str]] = {
    "feature": (lambda m, name: m.feature(name), "feature"),
    "add_feature": (lambda m, name: m.add_feature(name), "feature"),
    "add_features": (lambda m, name: m.add_features({"good": {}, name: {}}), "feature"),
    "observe": (lambda m, name: m.observe_feature(name, {"u1": 3}), "feature"),
    "suggest": (lambda m, name: m.suggest(name), "feature"),
    "remove_feature": (lambda m, name: m.remove_feature(name), "feature"),
    "predict features": (lambda m, name: m.predict(features=["f1", name]), "feature"),
    "predict rows": (lambda m, name: m.predict(rows=["u1", name]), "row"),
    "predict new rows": (lambda m, name: m.predict(rows={"new": {}, name: {}}), "row"),
    "suggest rows": (lambda m, name: m.suggest("f1", rows=["u1", name]), "row"),
    "add_rows": (lambda m, name: m.add_rows({"new": {}, name: {}}), "row"),
    "observed rows": (lambda m, name: m.observe_feature("f1", {"u1": 3, name: 3}), "name"),
    "first rows": (lambda m, name: m.add_feature("new", observations={"u1": 3, name: 3}), "name"),
    "features of a row": (lambda m, name: m.add_rows({"new": {name: 3}}), "name"),
}


def bad_names() -> Iterator[Case]:
    """Every thing that is no name, wherever a name comes in."""
    for where, (call, noun) in NAME_CALLS.items():
        for what, (name, message) in NO_NAMES.items():
            yield f"{where}-{what}", lambda m, c=call, n=name: c(m, n), message.format(noun=noun)


def unknown_names() -> Iterator[Case]:
    """Names that the model does not have."""
    for where, (call, _) in NAME_CALLS.items():
        if where.startswith("add_f") or where in ("add_rows", "predict new rows"):
            continue
        noun = "row" if "rows" in where else "feature"
        name = "u1x" if noun == "row" else "f1x"
        yield f"{where}-unknown", lambda m, c=call, n=name: c(m, n), f"unknown {noun} '{name}'"


TAKEN: list[Case] = [
    ("taken", lambda m: m.add_feature("f1"), "feature 'f1' is already in the model; use observe_feature()"),
    ("taken with spaces", lambda m: m.add_feature(" f1 "), "feature 'f1' is already in the model"),
    (
        "taken in a batch",
        lambda m: m.add_features({"new": {}, "f1": {}}),
        "feature 'f1' is already in the model",
    ),
    ("taken row", lambda m: m.add_rows({"new": {}, "u1\u00a0": {}}), "row 'u1' is already in the model"),
    (
        "two spellings of a new feature",
        lambda m: m.add_features({"Ame\u0301lie": {}, "Am\u00e9lie": {}}),
        "'Amélie' is given twice, as 'Ame\\u0301lie' and 'Amélie'",
    ),
    (
        "two spellings of a new row",
        lambda m: m.add_rows({7: {}, "7.0": {}}),
        "'7' is given twice, as 7 and '7.0'",
    ),
    (
        "two spellings of an observed row",
        lambda m: m.observe_feature("f1", {"u1": 3, " u1": 4}),
        "'u1' is given twice, as 'u1' and ' u1'",
    ),
    (
        "two spellings of a feature",
        lambda m: m.add_rows({"new": {"f1": 3, "f1 ": 4}}),
        "'f1' is given twice, as 'f1' and 'f1 '",
    ),
]

# --- values -------------------------------------------------------------------------------------------

NO_VALUES: dict[str, tuple[Any, str]] = {
    "text": ("5", "the value at '{at}' must be a number; got '5'"),
    "None": (None, "the value at '{at}' must be a number; got None"),
    "list": ([5], "the value at '{at}' must be a number; got [5]"),
    "complex": (5j, "the value at '{at}' must be a number; got 5j"),
    "array": (np.array([1.0, 2.0]), "the value at '{at}' must be a number; got array"),
    "nan": (NAN, "the value at '{at}' is nan"),
    "inf": (-INF, "the value at '{at}' is -inf"),
    "huge": (10**400, "a value is too large"),
    "below": (0, "the value 0 at '{at}' is not from 1 to 5 (kind rating:1:5)"),
    "above": (5.5, "the value 5.5 at '{at}' is not from 1 to 5 (kind rating:1:5)"),
}
VALUE_CALLS: dict[str, tuple[Callable[[Headstart, Any], Any], str]] = {
    "observe": (lambda m, value: m.observe_feature("f1", {"u2": 3, "u1": value}), "u1"),
    "add_feature": (lambda m, value: m.add_feature("new", observations={"u2": 3, "u1": value}), "u1"),
    "add_features": (
        lambda m, value: m.add_features({"a": {}, "new": {"observations": {"u1": value}}}),
        "u1",
    ),
    "add_rows": (lambda m, value: m.add_rows({"a": {}, "new": {"f2": 3, "f1": value}}), "f1"),
    "predict": (lambda m, value: m.predict(rows={"new": {"f1": value}}), "f1"),
}


def bad_values() -> Iterator[Case]:
    """Every thing that is no value of a rating, wherever a value comes in."""
    for where, (call, at) in VALUE_CALLS.items():
        for what, (value, message) in NO_VALUES.items():
            yield f"{where}-{what}", lambda m, c=call, v=value: c(m, v), message.format(at=at)


def no_mappings() -> Iterator[Case]:
    """Things that do not map names to anything."""
    calls: dict[str, tuple[Callable[[Headstart, Any], Any], str]] = {
        "observe": (lambda m, given: m.observe_feature("f1", given), "feature 'f1': observations must map"),
        "add_feature": (
            lambda m, given: m.add_feature("new", observations=given),
            "feature 'new': observations must map",
        ),
        "metadata": (
            lambda m, given: m.add_feature("new", metadata=given),
            "feature 'new': metadata must map",
        ),
        "add_features": (lambda m, given: m.add_features(given), "add_features() must map"),
        "parts": (lambda m, given: m.add_features({"new": given}), "feature 'new' must map"),
        "add_rows": (lambda m, given: m.add_rows(given), "add_rows() must map"),
        "row": (lambda m, given: m.add_rows({"new": given}), "row 'new': observations must map"),
        "predict": (lambda m, given: m.predict(rows={"new": given}), "row 'new': observations must map"),
    }
    for where, (call, message) in calls.items():
        for given in (5, "u1", [("u1", 3)], {"u1"}):
            what = type(given).__name__
            yield f"{where}-{what}", lambda m, c=call, g=given: c(m, g), f"{message} names to values"


# --- kinds and metadata of a new feature --------------------------------------------------------------

NO_KINDS: dict[str, tuple[Any, str]] = {
    "misspelled": (
        "ratng:1:5",
        "'ratng:1:5' is not a kind (binary, rating, real",
    ),
    "word": ("stars", "'stars' is not a kind"),
    "empty": ("", "'' is not a kind"),
    "one limit": ("rating:1", "kind 'rating:1': write rating:LOW:HIGH"),
    "three limits": ("rating:1:2:3", "write rating:LOW:HIGH"),
    "turned": ("rating:5:1", "a rating's range must be two numbers LOW < HIGH; got 5.0 and 1.0"),
    "equal": ("rating:1:1", "a rating's range must be two numbers LOW < HIGH"),
    "infinite": ("rating:1:inf", "a rating's range must be two numbers LOW < HIGH"),
    "letters": ("rating:a:b", "only numbers can follow the name"),
    "binary with limits": ("binary:0:1", "kind 'binary:0:1': binary has two labels"),
    "no scale": ("real:0:0", "a real's center and scale must be finite, scale > 0"),
    "negative scale": ("real:0:-1", "a real's center and scale must be finite, scale > 0"),
    "nan center": ("real:nan:1", "a real's center and scale must be finite, scale > 0"),
}
FEATURES: list[Case] = [
    (
        "kind not fitted",
        lambda m: m.add_feature("new", kind="binary"),
        "feature 'new': kind binary is not among",
    ),
    ("real not fitted", lambda m: m.add_feature("new", kind=Kind.real()), "kind real:0:1 is not among those"),
    (
        "unknown part",
        lambda m: m.add_features({"new": {"metdata": {}}}),
        "unknown part 'metdata'; did you mean",
    ),
    (
        "value of another kind",
        lambda m: m.add_feature("new", observations={"u1": 9}),
        "(kind rating:1:5); kind= gives the feature another kind",
    ),
    ("unknown metadata", lambda m: m.add_feature("new", metadata={"yaer": 1}), "unknown metadata 'yaer'"),
    ("column without a name", lambda m: m.add_feature("new", metadata={"": 1}), "'' cannot be a column name"),
    (
        "metadata twice",
        lambda m: m.add_feature("new", metadata={"year": 1, " year": 2}),
        "metadata 'year' is given twice",
    ),
]
NO_METADATA: dict[str, list[Any]] = {
    "year": ["2026", True, INF, [2026], {"a": 1}, 10**400],
    "genre": [["drama"], {"a": 1}, b"drama"],
    "tags": [3, {"a": 1}, b"a", [["a"]]],
    "released": ["yesterday", 2026, [1], "2026-13-01"],
    "title": [3, ["Alien"], b"Alien"],
    "vector": ["1,2", 3, [1.0, NAN], [1.0, "a"], [[1.0, 2.0]], [1.0], [1.0, 2.0, 3.0]],
}


def bad_features() -> Iterator[Case]:
    """What cannot be said of a new feature."""
    yield from FEATURES
    for what, (kind, message) in NO_KINDS.items():
        yield f"kind-{what}", lambda m, k=kind: m.add_feature("new", kind=k), message
    for column, values in NO_METADATA.items():
        for number, value in enumerate(values):
            yield (
                f"metadata-{column}-{number}",
                lambda m, c=column, v=value: m.add_feature("new", metadata={"genre": "drama", c: v}),
                f"feature 'new': metadata {column!r} must be",
            )


# --- other arguments ----------------------------------------------------------------------------------

ARGUMENTS: list[Case] = [
    *[(f"n-{n}", lambda m, n=n: m.suggest("f1", n=n), f"got {n!r}") for n in (0, -1, 1.5, True, "3", None)],
    *[
        (f"level-{x}", lambda m, x=x: m.predict(["u1"], ["f1"]).interval(x), f"between 0 and 1; got {x!r}")
        for x in (0, 1, -0.5, 90, NAN, "0.9", None)
    ],
    ("cell", lambda m: m.predict(["u1"], ["f1"])["u1", "f2"], "unknown feature 'f2'"),
    (
        "fit on a list",
        lambda m: m.fit([1, 2]),
        "fit() takes a Table, a frame, an array or the path of a file (see Table.read); got list",
    ),
    ("unknown parameter", lambda m: m.set_params(adaptor="bayes"), "has no parameter 'adaptor'"),
    ("not fitted", lambda m: Headstart().predict(), "this model is not fitted yet"),
    ("load nothing", lambda m: Headstart.load("/nowhere/at all"), "/nowhere/at all is not a saved model"),
]


def python_cases() -> list[Case]:
    """Return all cases."""
    return [
        *bad_names(),
        *unknown_names(),
        *TAKEN,
        *bad_values(),
        *no_mappings(),
        *bad_features(),
        *ARGUMENTS,
    ]
