"""Requests that must be refused: each with its status, and the field that it is about."""

from __future__ import annotations

from typing import Any, NamedTuple


class Bad(NamedTuple):
    """One request that must be refused."""

    what: str
    method: str
    path: str
    body: Any
    status: int
    field: str | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)


def _observe(what: str, status: int, field: str | None, **changes: Any) -> Bad:
    line = {"row": "u1", "feature": "f1", "value": 3, **changes}
    return Bad(what, "POST", "/v1/observations", {"observations": [line]}, status, field)


def _feature(what: str, status: int, field: str | None, **given: Any) -> Bad:
    return Bad(what, "POST", "/v1/features", {"name": "new", **given}, status, field)


def _row(what: str, status: int, field: str | None, **given: Any) -> Bad:
    return Bad(what, "POST", "/v1/rows", {"name": "new", **given}, status, field)


def _predict(what: str, status: int, field: str | None, **given: Any) -> Bad:
    return Bad(what, "POST", "/v1/predict", {"rows": ["u1"], "features": ["f1"], **given}, status, field)


LONG = "x" * 501
_NUMBER = b'{"observations": [{"row": "u1", "feature": "f1", "value": %s}]}'
_LEVEL = b'{"rows": ["u1"], "features": ["f1"], "level": %s}'
RAW = [  # bodies that JSON libraries would not write
    ("not JSON", "/v1/observations", b"{", 400),
    ("nothing", "/v1/observations", b"", 400),
    ("a list", "/v1/observations", b"[]", 422),
    ("null", "/v1/observations", b"null", 422),
    ("bytes", "/v1/observations", b"\xff\xfe\x00", 400),
    ("NaN", "/v1/observations", _NUMBER % b"NaN", 422),
    ("Infinity", "/v1/observations", _NUMBER % b"Infinity", 422),
    ("too large a number", "/v1/observations", _NUMBER % b"1e999", 422),
    (
        "a lone surrogate",
        "/v1/observations",
        b'{"observations": [{"row": "\\ud800", "feature": "f1", "value": 1}]}',
        400,
    ),
    ("deep nesting", "/v1/observations", b"[" * 100_000, 400),
    ("not JSON", "/v1/predict", b"{", 400),
    ("nothing", "/v1/predict", b"", 400),
    ("a list", "/v1/predict", b"[]", 422),
    ("bytes", "/v1/predict", b"\xff\xfe\x00", 400),
    ("NaN", "/v1/predict", _LEVEL % b"NaN", 422),
    ("Infinity", "/v1/predict", _LEVEL % b"Infinity", 422),
    ("a lone surrogate", "/v1/predict", b'{"rows": ["\\ud800"], "features": ["f1"]}', 400),
    ("deep nesting", "/v1/predict", b"[" * 100_000, 400),
]

BAD = [
    _observe("a value as text", 422, "/observations/0", value="3"),
    _observe("a value that is true", 422, "/observations/0/value", value=True),
    _observe("a value that is null", 422, "/observations/0/value", value=None),
    _observe("a value that is a list", 422, "/observations/0/value", value=[3]),
    _observe("a value out of range", 422, "/observations/0", value=6),
    _observe("an unknown row", 422, "/observations/0", row="nobody"),
    _observe("an unknown feature", 422, "/observations/0", feature="nothing"),
    _observe("a row that is a number", 422, "/observations/0/row", row=1),
    _observe("an empty row", 422, "/observations/0/row", row=""),
    _observe("a blank row", 422, "/observations/0", row="   "),
    _observe("too long a name", 422, "/observations/0/row", row=LONG),
    _observe("a name with a NUL", 422, "/observations/0/row", row="u1\x00"),
    _observe("a name with a line break", 422, "/observations/0/feature", feature="f1\nx"),
    _observe("an unknown field", 422, "/observations/0/colour", colour=2),
    _observe("SQL in a name", 422, "/observations/0", row="u1' OR '1'='1"),
    Bad("no observations", "POST", "/v1/observations", {"observations": []}, 422, "/observations"),
    Bad("observations missing", "POST", "/v1/observations", {}, 422, "/observations"),
    Bad("another field", "POST", "/v1/observations", {"observation": []}, 422, "/observations"),
    Bad("a dict", "POST", "/v1/observations", {"observations": {"u1": 3}}, 422, "/observations"),
    Bad(
        "one cell twice",
        "POST",
        "/v1/observations",
        {"observations": [{"row": "u1", "feature": "f1", "value": value} for value in (1, 2)]},
        422,
        "/observations",
    ),
    Bad(
        "the second is wrong",
        "POST",
        "/v1/observations",
        {
            "observations": [
                {"row": "u1", "feature": "f1", "value": 3},
                {"row": "u2", "feature": "f1", "value": 9},
            ]
        },
        422,
        "/observations/1",
    ),
    Bad("a text body", "POST", "/v1/observations", {}, 415, None, {"content-type": "text/plain"}),
    Bad(
        "a form",
        "POST",
        "/v1/observations",
        {},
        415,
        None,
        {"content-type": "application/x-www-form-urlencoded"},
    ),
    Bad(
        "an empty key",
        "POST",
        "/v1/observations",
        {"observations": [{"row": "u1", "feature": "f1", "value": 3}]},
        400,
        None,
        {"idempotency-key": ""},
    ),
    Bad(
        "a long key",
        "POST",
        "/v1/observations",
        {"observations": [{"row": "u1", "feature": "f1", "value": 3}]},
        400,
        None,
        {"idempotency-key": "k" * 1001},
    ),
    _feature("a feature that is there", 409, "/name", name="f1"),
    _feature("the same with spaces", 409, "/name", name="  f1 "),
    _feature("no name", 422, "/name", name=None),
    _feature("too long a name", 422, "/name", name=LONG),
    _feature("an unknown column", 422, "/metadata", metadata={"yeer": 1999}),
    _feature("a year as text", 422, "/metadata", metadata={"year": "last"}),
    _feature("a nested value", 422, None, metadata={"year": {"a": 1}}),
    _feature("metadata as a list", 422, "/metadata", metadata=[1]),
    _feature("observations as a list", 422, "/observations", observations=["u1"]),
    _feature("an unknown row", 422, "/observations", observations={"nobody": 3}),
    _feature("a value out of range", 422, "/observations", observations={"u1": 0}),
    _feature("a value as text", 422, "/observations", observations={"u1": "3"}),
    _feature("one row twice", 422, "/observations", observations={"u1": 3, " u1": 4}),
    _feature("an unknown kind", 422, "/kind", kind="stars"),
    _feature("a kind the model lacks", 422, "/kind", kind="binary"),
    _feature("an impossible kind", 422, "/kind", kind="rating:5:1"),
    _feature("an unknown field", 422, "/colour", colour="red"),
    _row("a row that is there", 409, "/name", name="u1"),
    _row("metadata the model lacks", 422, "/metadata", metadata={"age": 3}),
    _row("an unknown feature", 422, "/observations", observations={"nothing": 3}),
    _row("a value out of range", 422, "/observations", observations={"f1": 7}),
    _row("an unknown field", 422, "/age", age=3),
    Bad("remove what is not there", "DELETE", "/v1/features/nothing", None, 404),
    Bad("forget who is not there", "DELETE", "/v1/rows/nobody", None, 404),
    Bad("remove everything", "DELETE", "/v1/features", None, 405),
    Bad("forget everyone", "DELETE", "/v1/rows", None, 405),
    Bad("replace", "PUT", "/v1/features/f1", {}, 405),
    Bad("a folder above", "GET", "/v1/features/..%2F..%2Fetc%2Fpasswd", None, 404),
    Bad("bytes in an address", "GET", "/v1/features/%ff%fe", None, 400),
    Bad("no endpoint", "GET", "/v1/nothing", None, 404),
    Bad("another version", "GET", "/v2/features", None, 404),
    Bad("a page before the first", "GET", "/v1/features?offset=-1", None, 422),
    Bad("too large a page", "GET", "/v1/features?limit=1001", None, 422),
    Bad("an unknown order", "GET", "/v1/features?sort=colour", None, 422),
    Bad("SQL as an order", "GET", "/v1/features?order=asc;drop", None, 422),
    _predict("an unknown row", 422, "/rows", rows=["nobody"]),
    _predict("an unknown feature", 422, "/features", features=["nothing"]),
    _predict("no rows", 422, None, rows=[]),
    _predict("no features", 422, "/features", features=[]),
    _predict("a row twice", 422, "/rows", rows=["u1", "u1"]),
    _predict("a level of 1", 422, "/level", level=1),
    _predict("a level as text", 422, "/level", level="0.9"),
    _predict("an unknown form", 422, "/form", form="table"),
    _predict("a guest's value out of range", 422, "/rows", rows={"x": {"f1": 9}}),
    _predict("a guest's unknown feature", 422, "/rows", rows={"x": {"nothing": 3}}),
    _predict("an unknown field", 422, "/quantile", quantile=0.5),
    Bad("recommend to no one", "POST", "/v1/recommend", {"row": "nobody"}, 422, "/row"),
    Bad("too many", "POST", "/v1/recommend", {"row": "u1", "n": 1001}, 422, "/n"),
    Bad("none", "POST", "/v1/recommend", {"row": "u1", "n": 0}, 422, "/n"),
    Bad("half of one", "POST", "/v1/recommend", {"row": "u1", "n": 1.5}, 422, "/n"),
    Bad("by nothing", "POST", "/v1/recommend", {"row": "u1", "by": "luck"}, 422, "/by"),
    Bad(
        "unknown candidates",
        "POST",
        "/v1/recommend",
        {"row": "u1", "features": ["nothing"]},
        422,
        "/features",
    ),
    Bad("an audience of nothing", "POST", "/v1/audience", {"feature": "nothing"}, 422, "/feature"),
    Bad("an unknown audience", "POST", "/v1/audience", {"feature": "f1", "rows": ["nobody"]}, 422, "/rows"),
    Bad("suggest for nothing", "POST", "/v1/suggest", {"feature": "nothing"}, 422, "/feature"),
    Bad("like nothing", "POST", "/v1/similar", {"feature": "nothing"}, 422, "/feature"),
    Bad("explain no one", "POST", "/v1/explain", {"row": "nobody", "feature": "f1"}, 422, "/row"),
    Bad("explain nothing", "POST", "/v1/explain", {"row": "u1", "feature": "nothing"}, 422, "/feature"),
    Bad("no model", "POST", "/v1/model", {"path": "/nowhere"}, 422),
    Bad("a file as a model", "POST", "/v1/model", {"path": "/etc/passwd"}, 422),
    Bad("a path as a number", "POST", "/v1/model", {"path": 1}, 422, "/path"),
]
