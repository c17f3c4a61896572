"""Tables of all shapes, kinds and densities, each made from a seed."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Random = np.random.Generator
Values = tuple[str, NDArray[Any]]  # a kind, and one value for each row
Cell = tuple[str, str, Any]  # row, feature, value

MOST_CELLS = 6000
LABELS = ["never", "rarely, if ever", "some: times", "often", "always", "ümmer", '"quoted"']
ANSWERS = ["never", "rarely", "some", "often", "always"]
NAMES = [
    "plain {}",
    "{}",
    "Ünïcode ☃ {}",
    "a/b {}",
    "quo\"ted' {}",
    "new\nline {}",
    "comma, {}; semi",
    "tab\t{}",
    "x=y {}",
    "..{}",
    "-{}",
    "%s {}",
    "日本語{}",
    "long " + "x" * 300 + " {}",
    "1.{}",
    "nan {}",
    "<b>{}</b>",
    "#{}",
    "e\u0301 {}",
    "{}\u00a0y",
    "row {}",
    "\U0001f3ac{}",
]


# --- values of one feature from its latent numbers, about standard normal -----------------------------


def reals(random: Random, latent: NDArray[np.float64]) -> Values:
    """Reals of any scale and center, some with heavy tails."""
    scale = 10.0 ** random.choice([0, 0, 0, 1, -3, 6, -12, 12, -6])
    center = random.choice([0, 0, 5, 1000, -1e6]) * random.choice([1, scale])
    tail = random.choice(["normal", "normal", "cubed", "cauchy", "one outlier"])
    values = latent**3 if tail == "cubed" else latent.copy()
    if tail == "cauchy":
        values *= np.abs(random.standard_cauchy(len(latent)))
    if tail == "one outlier":
        values[random.integers(len(values))] = 1e4
    return "real", center + scale * values


def ratings(random: Random, latent: NDArray[np.float64]) -> Values:
    """Ratings on a grid between two ends."""
    scales = [(1, 5, 1), (0.5, 5, 0.5), (0, 10, 1), (0, 100, 1), (-3, 3, 1), (1, 3, 1), (0, 1, 0.25)]
    low, high, step = scales[random.integers(len(scales))]
    numbers = random.uniform(low, high) + (high - low) * random.uniform(0.05, 0.4) * latent
    return f"rating:{low}:{high}", np.clip(low + step * np.round((numbers - low) / step), low, high)


def binary(random: Random, latent: NDArray[np.float64]) -> Values:
    """Zeros and ones, sometimes hardly any of the one or the other."""
    return "binary", (latent > random.choice([0, 0, 0.5, -1, 2.5])).astype(float)


def labelled_binary(random: Random, latent: NDArray[np.float64]) -> Values:
    """Two labels."""
    return "binary:no,yes", np.where(latent > random.normal(), "yes", "no").astype(object)


def counts(random: Random, latent: NDArray[np.float64]) -> Values:
    """Whole numbers, some beyond 2³¹."""
    size = random.choice([0.0, 1.0, 3.0, 8.0, 23.0])
    return "count", np.floor(np.exp(np.minimum(size + random.uniform(0.3, 2) * latent, 34)))


def amounts(random: Random, latent: NDArray[np.float64]) -> Values:
    """Numbers from 0 up over orders of magnitude, some with zeros."""
    values = np.exp(random.choice([-20.0, 0.0, 4.0, 25.0]) + random.uniform(0.1, 3) * latent)
    if random.random() < 0.5:
        values[latent < -1] = 0.0
    return "amount", values


def ordinal(random: Random, latent: NDArray[np.float64]) -> Values:
    """Ordered answers, as numbers or labels."""
    count = int(random.integers(3, 6))
    level = np.clip(np.round(count / 2 + latent), 1, count).astype(int)
    if random.random() < 0.5:
        return "ordinal:" + ",".join(map(str, range(1, count + 1))), level.astype(float)
    return "ordinal:" + ",".join(ANSWERS[:count]), np.array(ANSWERS, dtype=object)[level - 1]


def category(random: Random, latent: NDArray[np.float64]) -> Values:
    """Options without an order."""
    levels = random.permutation(LABELS)[: random.integers(2, len(LABELS) + 1)].astype(object)
    noisy = latent + 0.5 * random.normal(size=len(latent))
    return "category", levels[np.floor(2 * noisy).astype(int) % len(levels)]


def clicks(random: Random, latent: NDArray[np.float64]) -> Values:
    """Clicks where the latent number is large, some of them repeated; NaN elsewhere."""
    values = np.where(latent > random.uniform(-0.5, 1.5), 1.0, np.nan)
    return "click", values * np.where(random.random(len(latent)) < 0.3, random.integers(1, 9, len(latent)), 1)


def censored(random: Random, latent: NDArray[np.float64]) -> Values:
    """Reals as texts, with limits in place of small and large ones."""
    scale = float(random.choice([1.0, 1e-6, 1e6]))
    values = (np.exp(latent) if random.random() < 0.5 else latent) * scale
    low, high = np.quantile(values, [random.uniform(0, 0.5), random.uniform(0.5, 1)])
    texts = [f"<{low:g}" if x < low else f">{high:g}" if x > high else repr(float(x)) for x in values]
    return "real", np.array(texts, dtype=object)


MAKERS: dict[str, Callable[[Random, NDArray[np.float64]], Values]] = {
    "real": reals,
    "rating": ratings,
    "binary": binary,
    "labels": labelled_binary,
    "count": counts,
    "amount": amounts,
    "ordinal": ordinal,
    "category": category,
    "click": clicks,
    "censored": censored,
}
NUMBERS = ("real", "rating", "binary", "count", "amount")


# --- tables -------------------------------------------------------------------------------------------


@dataclass
class MadeTable:
    """A made table, before it is read."""

    about: str
    rows: list[str]
    features: list[str]
    kinds: dict[str, str]
    cells: list[Cell]  # the observed ones
    spare: list[Cell]  # others, to observe later
    form: str
    options: dict[str, Any] = field(default_factory=dict)  # of ``Table.read``
    settings: dict[str, Any] = field(default_factory=dict)  # of ``Headstart``
    times: NDArray[np.float64] | None = None  # of ``cells``
    weights: NDArray[np.float64] | None = None  # of ``cells``
    metadata: dict[str, Any] = field(default_factory=dict)  # of a new feature
    row_metadata: dict[str, Any] | None = None  # of a new row

    def source(self) -> pa.Table:
        """Return what ``Table.read`` takes."""
        if self.form == "long":
            columns = {"time": self.times, "weight": self.weights}
            return long_frame(self.cells, **{key: part for key, part in columns.items() if part is not None})
        values: dict[str, list[Any]] = {feature: [None] * len(self.rows) for feature in self.features}
        positions = {row: i for i, row in enumerate(self.rows)}
        for row, feature, value in self.cells:
            values[feature][positions[row]] = value
        return pa.table({"row": self.rows, **{name: value_column(own) for name, own in values.items()}})


def long_frame(cells: list[Cell], **more: Any) -> pa.Table:
    """Return cells as a frame of the long form."""
    rows, features, values = zip(*cells, strict=True) if cells else ((), (), ())
    return pa.table(
        {"row": list(rows), "feature": list(features), "value": value_column(list(values)), **more},
        schema=None,
    )


def value_column(values: list[Any]) -> pa.Array:
    """Return numbers as numbers, and texts, or texts and numbers, as texts."""
    if any(isinstance(value, str) for value in values):
        return pa.array([None if v is None else v if isinstance(v, str) else repr(float(v)) for v in values])
    return pa.array([None if v is None else float(v) for v in values], pa.float64())


class Shape(NamedTuple):
    """The numbers of rows and features of made tables, at most."""

    rows: int = 400
    features: int = 40


def make_table(seed: int, most: Shape = Shape()) -> MadeTable:  # noqa: B008 (immutable)
    """Return the table of a seed."""
    random = np.random.default_rng(seed)
    width = int(random.choice([random.integers(1, 6), random.integers(4, 15), random.integers(10, 41)]))
    lengths = [1, random.integers(2, 8), random.integers(8, 60), random.integers(60, 401)]
    length = int(random.choice(lengths, p=[0.08, 0.17, 0.45, 0.3]))
    width, length = min(width, most.features), min(length, most.rows)
    length = min(length, MOST_CELLS // width)
    rank = int(random.integers(0, 4))
    latent = random.normal(size=(length, rank)) @ random.normal(size=(rank, width))
    latent = latent / max(1.0, np.sqrt(rank)) + random.uniform(0.1, 1) * random.normal(size=(length, width))
    makers = _draw_makers(random, width)
    rows, features = _draw_names(random, length, width)
    columns, kinds = _draw_columns(random, makers, features, latent)
    seen = _draw_observed(random, length, width)
    cells: list[Cell] = []
    spare: list[Cell] = []
    for i, j in np.ndindex(length, width):
        value = columns[j][i]
        if isinstance(value, str) or np.isfinite(value):
            (cells if seen[i, j] else spare).append((rows[i], features[j], value))
    form = str(random.choice(["long", "long", "wide"]))
    table = MadeTable("", rows, features, kinds, cells, spare, form)
    _draw_options(random, table, latent)
    kind_names = dict(Counter(makers))
    table.about = (
        f"{length} × {width}, {len(cells)} values: {kind_names}, {form}, {table.settings}, "
        f"options {sorted(table.options)}"
    )
    return table


def _draw_makers(random: Random, width: int) -> list[str]:
    """Draw the names of the makers of features: one, some, or few of one among many of another."""
    every, plain = list(MAKERS), [name for name in MAKERS if name != "click"]
    mix = random.choice(["one", "numbers", "two", "few reals", "all", "few others"])
    if mix in ("numbers", "two", "all"):
        among = {"numbers": list(NUMBERS), "two": random.choice(every, 2).tolist(), "all": plain}[str(mix)]
        drawn: list[str] = random.choice(among, width).tolist()
        return drawn
    usual = {"one": every, "few reals": ["binary", "rating"], "few others": list(NUMBERS)}[str(mix)]
    makers = [str(random.choice(usual))] * width
    others = {"one": [], "few reals": ["real", "amount", "count"], "few others": every}[str(mix)]
    for j in random.permutation(width)[: random.integers(1, 4)] if others else ():
        makers[j] = str(random.choice(others))
    return makers


def _draw_names(random: Random, length: int, width: int) -> tuple[list[str], list[str]]:
    """Draw the names of rows and features: usual ones, unusual ones, or numbers."""
    style = random.choice(["usual", "unusual", "numbers"], p=[0.65, 0.25, 0.1])
    if style == "usual":
        return [f"u{i}" for i in range(length)], [f"f{j}" for j in range(width)]
    if style == "numbers":
        return [str(1000 + i) for i in range(length)], [str(j) for j in range(width)]
    rows, features = (random.choice(NAMES, count) for count in (length, width))
    return [name.format(i) for i, name in enumerate(rows)], [
        name.format(j) for j, name in enumerate(features)
    ]


def _draw_columns(
    random: Random, makers: list[str], features: list[str], latent: NDArray[np.float64]
) -> tuple[list[NDArray[Any]], dict[str, str]]:
    """Draw the values of all features; some are constant or duplicated. Return also their kinds."""
    seed, alike = int(random.integers(2**31)), random.random() < 0.6  # all features have the same parameters
    made = [
        MAKERS[name](np.random.default_rng(seed if alike else seed + j), latent[:, j])
        for j, name in enumerate(makers)
    ]
    kinds = {name: kind for name, (kind, _) in zip(features, made, strict=True)}
    columns = [values for _, values in made]
    for j, name in enumerate(features):
        change = random.random()
        if change < 0.06 and columns[j].dtype != object:
            known = columns[j][np.isfinite(columns[j])]
            columns[j] = np.full(len(latent), known[0] if len(known) else 1.0)
        elif change < 0.1:
            other = int(random.integers(len(features)))
            if kinds[features[other]] == kinds[name]:
                columns[j] = columns[other].copy()
    return columns, kinds


def _draw_observed(random: Random, length: int, width: int) -> NDArray[np.bool_]:
    """Draw which cells are observed: all of them down to one for each feature, and none of some."""
    density = random.choice([1.0, 0.7, 0.4, 0.15, 0.03, 0.0])
    seen = random.random((length, width)) < density
    if density == 0.0:
        seen[random.integers(length, size=width), np.arange(width)] = True
    if random.random() < 0.25:
        seen[random.integers(length)] = False
    if random.random() < 0.25:
        seen[:, random.integers(width)] = False
    return seen


def _draw_options(random: Random, table: MadeTable, latent: NDArray[np.float64]) -> None:
    """Draw weights, times, metadata, given kinds and the adapter of a table."""
    options, count = table.options, len(table.cells)
    table.settings["adapter"] = str(random.choice(["auto", "auto", "auto", "bayes"]))
    if table.form == "long" and random.random() < 0.15 and "click" not in table.kinds.values():
        table.weights, options["weight"] = random.choice([0.1, 0.5, 1, 3, 100], count), "weight"
    if table.form == "long" and random.random() < 0.15:
        table.times, options["time"] = np.sort(random.integers(0, 10**9, count).astype(float)), "time"
        table.settings["half_life"] = float(random.choice([1e3, 1e8, 1e12]))
    if random.random() < 0.7:
        known = {cell[1] for cell in table.cells} if table.form == "long" else table.kinds.keys()
        options["kinds"] = {name: kind for name, kind in table.kinds.items() if name in known}
    if random.random() < 0.5:
        options["metadata"], table.metadata = _draw_metadata(
            random, "feature", table.features, latent.mean(0)
        )
    if random.random() < 0.25:
        options["row_metadata"], table.row_metadata = _draw_metadata(
            random, "row", table.rows, latent.mean(1)
        )


def _draw_metadata(
    random: Random, noun: str, names: list[str], signal: NDArray[np.float64]
) -> tuple[pa.Table, dict[str, Any]]:
    """Draw the metadata of some names, partly missing; return also those of a new name."""
    chosen = random.permutation(len(names))[: random.integers(1, len(names) + 1)]
    chosen = np.arange(len(names)) if random.random() < 0.6 else chosen
    count, words = len(chosen), ["red", "blue", "green", "a quite long text", "ümlaut"]
    first = datetime.date(2000, 1, 1)
    columns: dict[str, tuple[list[Any], Any]] = {
        "number": ((signal[chosen] * 10.0 ** random.integers(-9, 10)).tolist(), 0.5),
        "constant": ([7.0] * count, 7.0),
        "group": (random.choice(words[:3], count).tolist(), "red"),
        "same": (["x"] * count, "y"),
        "text": ([" ".join(random.choice(words, 5)) + f" {i}" for i in range(count)], "blue text"),
        "day": (
            [first + datetime.timedelta(int(days)) for days in random.integers(9000, size=count)],
            datetime.date(2030, 1, 1),
        ),
        "tags": ([random.choice(words, random.integers(0, 3)).tolist() for _ in range(count)], ["red"]),
        "vector": (random.normal(size=(count, 3)).tolist(), [0.1, 0.2, 0.3]),
        "truth": ((random.random(count) < 0.5).tolist(), True),
        "empty": ([None] * count, None),
        "huge": ((10.0 ** random.uniform(-200, 200, count)).tolist(), 1e250),
        "title": ([f"title {i // 2}" for i in range(count)], "title new"),
    }
    lines: dict[str, Any] = {noun: [names[i] for i in chosen]}
    new: dict[str, Any] = {}
    for name in random.choice(list(columns), random.integers(1, 5), replace=False).tolist():
        values, other = columns[name]
        missing = random.random(count) < random.choice([0.0, 0.0, 0.3, 0.9])
        lines[name] = [None if gap else value for value, gap in zip(values, missing, strict=True)]
        if other is not None and random.random() < 0.7:
            new[name] = other
    return pa.table(lines), new
