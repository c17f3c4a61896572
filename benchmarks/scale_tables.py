"""Tables for ``scale.py``: low-rank ratings of long-tailed popularity, written in chunks of rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

RANK, GENRES, NOISE = 8, 12, 0.7
NEW, SHOTS = 32, 16  # features that are not in the table, and their observations
TESTS = 20_000  # cells of known features with their true means
CHUNK = 2_000_000  # observations, about, in a file


@dataclass(frozen=True)
class Shape:
    """The size of a table."""

    observations: int
    rows: int
    features: int

    @classmethod
    def of(cls, text: str) -> Shape:
        """Read "10M", with rows and features in proportion, or "100M:2M:100k"."""
        numbers = [_number(part) for part in text.split(":")]
        if len(numbers) == 1:
            n = numbers[0]
            return cls(n, max(100, n // 50), max(50, round(2000 * (n / 1e6) ** 0.85)))
        return cls(*numbers)

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{_short(self.observations)}-{_short(self.rows)}-{_short(self.features)}"


def _number(text: str) -> int:
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    return round(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text)


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size and number * 10 % size == 0:
            return f"{number / size:g}{unit}"
    return str(number)


def make(shape: Shape, folder: Path, seed: int = 0) -> None:
    """Write the observations, the metadata, and the test cells with their true means."""
    done = folder / "shape.json"
    if done.exists():
        return
    (folder / "observations").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    heads, bias, metadata = _features(shape.features + NEW, rng)
    pq.write_table(metadata.slice(0, shape.features), folder / "metadata.parquet")
    # A Zipf-like law with a flat head: a few percent of the rows observe the most popular feature.
    popularity = 1 / (np.arange(shape.features) + shape.features / 50 + 10) ** 0.9
    cumulative = np.cumsum(rng.permutation(popularity))
    cumulative /= cumulative[-1]
    usual = shape.observations / shape.rows
    per_file = max(1, round(CHUNK / usual))
    tests, news, written = [], [], 0
    for number, start in enumerate(range(0, shape.rows, per_file)):
        rows = np.arange(start, min(shape.rows, start + per_file))
        part = np.random.default_rng((seed, 1, number))
        factors = part.normal(size=(len(rows), RANK)).astype(np.float32)
        # Somewhat more cells are drawn than needed, because some are drawn twice.
        counts = np.maximum(1, part.lognormal(np.log(usual) - 0.32, 0.8, len(rows)) * 1.05).astype(np.int64)
        counts = np.minimum(counts, shape.features // 3 + 1)
        line = np.repeat(np.arange(len(rows)), counts)
        drawn = np.searchsorted(cumulative, part.random(len(line)))
        keys = np.unique(line * shape.features + drawn)
        line, drawn = np.divmod(keys, shape.features)
        value = _observed(_truth(factors[line], heads[drawn], bias[drawn]), part)
        order = part.permutation(len(line))
        table = pa.table({
            "row": pa.array((rows[line])[order]),
            "feature": pa.array(drawn[order].astype(np.int32)),
            "value": pa.array(value[order].astype(np.float32)),
        })  # fmt: skip
        pq.write_table(table, folder / "observations" / f"part-{number:05}.parquet")
        written += len(line)
        share = max(1, round(TESTS * len(rows) / shape.rows))
        own, of = part.integers(len(rows), size=share), part.integers(shape.features, size=share)
        tests.append((rows[own], of, _truth(factors[own], heads[of], bias[of])))
        some = part.integers(len(rows), size=max(1, round((SHOTS + 400) * NEW * len(rows) / shape.rows)))
        new = part.integers(NEW, size=len(some))
        mean = _truth(factors[some], heads[shape.features + new], bias[shape.features + new])
        news.append((rows[some], new, mean, _observed(mean, part)))
    names = [f"{kind}_{what}" for kind in ("test", "new") for what in ("row", "feature", "truth", "value")]
    columns = [*map(np.concatenate, zip(*tests, strict=True)), np.zeros(0),
               *map(np.concatenate, zip(*news, strict=True))]  # fmt: skip
    np.savez(folder / "truth.npz", **dict(zip(names, columns, strict=True)))
    described = metadata.slice(shape.features)
    facts = {**asdict(shape), "written": written, "new": described.to_pylist()}
    done.write_text(json.dumps(facts))


def _features(
    count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32], pa.Table]:
    """Draw heads, biases and metadata; heads depend in part on genre and year."""
    genre, year = rng.integers(GENRES, size=count), rng.integers(1950, 2025, size=count)
    centres, slope = rng.normal(size=(GENRES, RANK)), rng.normal(size=RANK)
    age = (year - 1987) / 20
    decay = 0.8 ** np.arange(RANK)  # the first factors matter most
    heads = 0.6 * centres[genre] + 0.3 * age[:, None] * slope + 0.75 * rng.normal(size=(count, RANK))
    heads = (0.45 * decay * heads).astype(np.float32)
    bias = (3.4 + 0.25 * rng.normal(size=count) + 0.2 * rng.normal(size=GENRES)[genre]).astype(np.float32)
    names = [f"genre {g}" for g in genre]
    return heads, bias, pa.table({"feature": np.arange(count), "genre": names, "year": year})


def _truth(
    factors: NDArray[np.float32], heads: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    mean: NDArray[np.float32] = np.clip((factors * heads).sum(1) + bias, 1, 5)
    return mean


def _observed(mean: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float64]:
    return np.clip(np.round(mean + NOISE * rng.normal(size=len(mean))), 1, 5)
