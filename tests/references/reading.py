"""What ``Table.read`` makes of small inputs: names, kinds, values, encoded metadata and notes."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headstart import InputError, Table

LONG = "user,film,stars\nann,Alien,5\nann,Brazil,3\nbob,Alien,1\nbob,Casablanca,4\ncy,Brazil,2\n"
WIDE = "row;smokes;mood;weight\nann;1;3;61,5\nbob;0;;80,25\ncy;;10;72\ndee;1;7;55,125\n"


def seen(table: Table) -> dict[str, Any]:
    """Give all that a table holds, and its own description."""
    return {
        "rows": list(table.rows),
        "features": list(table.features),
        "kinds": [str(kind) for kind in table.kinds],
        "row_index": table.row_index,
        "feature_index": table.feature_index,
        "values": table.values,
        "value_type": str(table.values.dtype),
        "times": table.times,
        "encoded": table.encoded_metadata(),
        "repr": repr(table),
        "description": table.describe(),
    }


def long_csv(folder: Path) -> Any:
    """Read the long form."""
    (folder / "long.csv").write_text(LONG)
    table = Table.read(folder / "long.csv", row="user", feature="film", value="stars")
    return seen(table) | {"fingerprint": table.fingerprint()}


def wide_csv(folder: Path) -> Any:
    """Read the wide form with other separators, and infer three kinds."""
    (folder / "wide.csv").write_text(WIDE)
    table = Table.read(folder / "wide.csv", decimal=",")
    found = seen(table)
    found["description"] = found["description"].replace(str(folder), "FOLDER")
    return found


def inferred_kinds(folder: Path) -> Any:
    """Infer the kind of each of several sorts of values, by themselves and side by side."""
    columns = {
        "yes or no": [0, 1, 1, 0, None, 1],
        "stars": [1, 5, 3, 2, 4, 4],
        "half stars": [0.5, 5, 3.5, 2, 4, 4.5],
        "ten points": [0, 10, 7, 3, None, 8],
        "hundred points": [3, 97, 55, 41, 100, 0],
        "length": [1.72, 1.64, None, 1.81, 1.55, 1.9],
        "income": [1200.5, 100000.0, 3400.0, 8000.25, 2200.0, None],
        "one value": [3, 3, 3, 3, 3, 3],
    }
    values = {name: pa.array(each, pa.float64()) for name, each in columns.items()}
    alone = {
        name: seen(Table.read(pa.table({"row": list("abcdef"), name: each})))["description"]
        for name, each in values.items()
    }
    values["never"] = pa.nulls(6, pa.float64())
    return {"alone": alone, "together": seen(Table.read(pa.table({"row": list("abcdef")} | values)))}


def given_kinds(folder: Path) -> Any:
    """Take some kinds as given and the others as inferred."""
    frame = pa.table({"row": list("abcd"), "x": [1, 2, 3, 4], "y": [0, 1, 1, 0], "z": [1.5, 2.5, 0.5, 9.0]})
    return seen(Table.read(frame, kinds={"x": "rating:0:10", "z": "real"}))


def every_column_type(folder: Path) -> Any:
    """Encode one metadata column of each type."""
    observations = pa.table({"row": list("ababab"), "feature": list("xxyyzz"), "value": [1, 5, 3, 4, 2, 2]})
    metadata = pa.table(
        {
            "feature": list("xyzw"),
            "number": [1.0, 2.5, None, 40.0],
            "date": ["2020-01-31", "2021-12-24", "2023-06-01", None],
            "category": ["drama", "comedy", "drama", None],
            "labels": [["new", "short"], ["old"], [], None],
            "text": ["a long film about whales", "a short film", "", None],
            "vector": [[0.1, 0.2], [1.0, -1.0], None, [3.0, 4.0]],
            "custom": ["aa", "b", "cccc", "d"],
            "ignored": [1, 2, 3, 4],
        }
    )
    types = {name: name for name in ("number", "date", "category", "labels", "vector")}
    table = Table.read(
        observations,
        metadata=metadata,
        metadata_types=types | {"text": "text:8", "ignored": "ignore"},
        encoders={"custom": lambda values: np.array([[len(value), 1.0] for value in values])},
        quiet=True,
    )
    return seen(table)


def inferred_column_types(folder: Path) -> Any:
    """Infer the types of metadata columns, of features and of rows."""
    names = [f"x{i:02}" for i in range(24)]
    observations = pa.table({"row": list("ab") * 12, "feature": names, "value": [0, 1, 1] * 8})
    metadata = pa.table(
        {
            "feature": names,
            "year": [1999 + i if i % 5 else None for i in range(24)],
            "when": [date(2020 + i % 3, 1 + i % 12, 1 + i) for i in range(24)],
            "genre": ["drama", "comedy", "drama", "crime"] * 6,
            "tags": [["a", "b"], ["b"], [], ["c"]] * 6,
            "spot": [[0.1 * i, 1.0 - i] for i in range(24)],
            "same": ["one"] * 24,
        }
    )
    people = pa.table({"row": list("abc"), "age": [20, 30, 41], "town": ["Ulm", "Ulm", "Ulm"]})
    return seen(Table.read(observations, metadata=metadata, row_metadata=people, quiet=True))


def duplicates(folder: Path) -> Any:
    """Take the last or the mean of several values of one cell, and refuse them by default."""
    frame = pa.table({"row": list("aaab"), "feature": list("xxyy"), "value": [1, 4, 5, 2]})
    found: dict[str, Any] = {
        way: seen(Table.read(frame, duplicates=way, kinds="rating:1:5")) for way in ("last", "mean")
    }
    try:
        Table.read(frame)
    except InputError as error:
        found["error"] = str(error)
    return found


def times(folder: Path) -> Any:
    """Read dates and numbers as times."""
    frame = {"row": list("aab"), "feature": list("xyx"), "value": [1, 2, 3]}
    dates = pa.table(frame | {"when": ["2024-01-01", "2024-02-29T12:00:00", "2023-12-31"]})
    return {
        "dates": seen(Table.read(dates, time="when")),
        "numbers": seen(Table.read(pa.table(frame | {"when": [3.5, 1, 2]}), time="when")),
    }


SCENARIOS = {
    "long csv": long_csv,
    "wide csv": wide_csv,
    "inferred kinds": inferred_kinds,
    "given kinds": given_kinds,
    "every column type": every_column_type,
    "inferred column types": inferred_column_types,
    "duplicates": duplicates,
    "times": times,
}
