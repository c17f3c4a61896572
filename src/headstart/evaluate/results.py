"""Store the results of a benchmark in a stable file format, and show them as tables.

A ``Run`` is one number: a metric of one method on one split. ``Results`` are all runs of a benchmark with the
data and settings; a ``Curve`` summarises the runs of one method over splits by shots; a ``TextTable`` shows
the curves of all methods; a ``Timing`` is the time of a method per head.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from headstart.adapters.base import Adapter
from headstart.config import Config
from headstart.core.types import FeatureBatch, RowStates
from headstart.display import table_html, text_table
from headstart.errors import InputError
from headstart.evaluate.metrics import METRICS, metric_of
from headstart.files import write_bytes

FORMAT = 2  # of ``results.json``; format 1 had no runs of held-out rows

BATCH = 128  # features that are timed together

Test = Literal["features", "rows", "both"]

TESTS: tuple[Test, ...] = get_args(Test)


class Run(BaseModel):
    """One number: a metric of one method at one number of shots, on one split.

    New features at known rows have ``shots``, known features at new rows have ``row_shots``, and new
    features at new rows have both.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    method: str
    shots: int | None  # observations of each new feature; None if the features are known
    row_shots: int | None = None  # observations of each new row; None if the rows are known
    metric: str
    value: FiniteFloat
    features: int  # number of features in the value
    targets: int  # number of cells in the value
    ms_per_feature: float | None = None  # milliseconds to compute one head at these shots

    @property
    def test(self) -> Test:
        """The kind of test: new features, new rows or both."""
        if self.row_shots is None:
            return "features"
        return "rows" if self.shots is None else "both"

    @property
    def n_observations(self) -> int:
        """Number of observations of each new feature or row."""
        return next(number for number in (self.shots, self.row_shots) if number is not None)

    @model_validator(mode="after")
    def _check_shots(self) -> Run:
        if self.shots is None and self.row_shots is None:
            raise ValueError("a run needs shots, row_shots or both")
        return self


class Curve(NamedTuple):
    """A metric of one method by observations: mean and standard deviation over splits."""

    shots: list[int]
    mean: list[float]
    sigma: list[float | None]  # sample standard deviation; None if there is only one split


class Results(BaseModel):
    """All numbers of a benchmark, with facts about the data and the settings.

    Parameters
    ----------
    data : dict
        Facts about the table and about each split, as plain JSON.
    settings : dict
        The settings as plain JSON. ``settings["used"]`` are the settings with all defaults filled in.
    runs : list of Run
        One record per split, method, test, number of observations and metric.
    format : int
        Version of the file format.

    Examples
    --------
    >>> run = Run(split=0, method="mean", shots=4, metric="rmse", value=1.0, features=3, targets=30)
    >>> other = run.model_copy(update={"split": 1, "value": 2.0})
    >>> Results(data={}, settings={}, runs=[run, other]).curves("rmse")["mean"]
    Curve(shots=[4], mean=[1.5], sigma=[0.7071067811865476])
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    data: dict[str, Any]
    settings: dict[str, Any]
    runs: list[Run]

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read a results file.

        Raises
        ------
        InputError
            If the file is missing, damaged or of a newer format.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"cannot read results {str(path)!r}: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"{str(path)!r} is not a results file: it is not JSON ({error})") from None
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise InputError(f"{str(path)!r} is not a results file: it has no number 'format'")
        if content["format"] > FORMAT:
            raise InputError(
                f"{str(path)!r} has format {content['format']}; this version of Headstart reads "
                f"up to {FORMAT}: upgrade it"
            )
        try:
            return cls(**{**content, "format": FORMAT})  # format 1 is a subset of format 2
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputError(f"{str(path)!r} is damaged at {where!r}: {first['msg']}") from None

    def save(self, path: str | Path) -> None:
        """Write a file with one line per run. A crash leaves either the old file or the new one."""
        runs = ",\n".join(f"  {json.dumps(run.model_dump())}" for run in self.runs)
        parts = [
            f'"format": {self.format}',
            f'"data": {_json(self.data)}',
            f'"settings": {_json(self.settings)}',
            f'"runs": [\n{runs}\n ]',
        ]
        write_bytes(Path(path), ("{" + ",\n ".join(parts) + "}\n").encode())

    @classmethod
    def from_splits(
        cls, data: dict[str, Any], settings: dict[str, Any], parts: Iterable[Iterable[Run]]
    ) -> Results:
        """Build results from the runs of several splits.

        The runs are sorted by split, method, test, number of observations and metric.
        """
        methods = {method: i for i, method in enumerate(settings.get("methods", []))}
        metrics = {metric: i for i, metric in enumerate(METRICS)}

        def key(run: Run) -> tuple[int, int, int, int, int]:
            return (
                run.split,
                methods.get(run.method, len(methods)),
                TESTS.index(run.test),
                run.n_observations,
                metrics.get(run.metric, len(metrics)),
            )

        return cls(data=data, settings=settings, runs=sorted((r for part in parts for r in part), key=key))

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of their first runs."""
        return list(dict.fromkeys(run.method for run in self.runs))

    @property
    def shots(self) -> list[int]:
        """The numbers of shots of new features in ascending order."""
        return self.shots_of("features")

    @property
    def row_shots(self) -> list[int]:
        """The numbers of observations of new rows in ascending order; empty if no rows were held out."""
        return self.shots_of("rows")

    @property
    def metrics(self) -> list[str]:
        """The metrics of the test of new features, the main ones first."""
        return self.metrics_of("features")

    @property
    def splits(self) -> int:
        """The number of splits."""
        return len({run.split for run in self.runs})

    def shots_of(self, test: Test) -> list[int]:
        """Return the numbers of observations of a test in ascending order."""
        return sorted({run.n_observations for run in self.runs if run.test == test})

    def metrics_of(self, test: Test) -> list[str]:
        """Return the metrics of a test, the main ones first."""
        names = dict.fromkeys(run.metric for run in self.runs if run.test == test)
        return [name for name in METRICS if name in names] + [name for name in names if name not in METRICS]

    def curves(self, metric: str, test: Test = "features") -> dict[str, Curve]:
        """Return the mean and standard deviation over splits of a metric, by method and observations.

        Parameters
        ----------
        metric : str
            Name of the metric, see ``METRICS``.
        test : {"features", "rows", "both"}, default="features"
            The kind of test: new features by their shots, new rows by their observations, or both.

        Returns
        -------
        dict of str to Curve
            By method; empty if the test has no such metric.
        """
        values: dict[str, dict[int, list[float]]] = {}
        for run in self.runs:
            if run.metric == metric and run.test == test:
                values.setdefault(run.method, {}).setdefault(run.n_observations, []).append(run.value)
        return {method: _curve(by_shots) for method, by_shots in values.items()}

    def to_markdown(self) -> str:
        """Return one Markdown table per test and metric: mean ± 1σ over splits, the best in bold."""
        tables = self._tables()
        return "\n\n".join(f"## {table.title}\n\n{table.to_markdown()}" for table in tables)

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{table.title}\n" + text_table([(table.corner, *table.shots), *table.lines()])
            for table in self._tables()
        )

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return "\n".join(
            table_html((table.corner, *table.shots), table.lines(), table.title) for table in self._tables()
        )

    def _tables(self) -> list[TextTable]:
        return [metric_table(self, name, test) for test in TESTS for name in self.metrics_of(test)]


def _curve(values: dict[int, list[float]]) -> Curve:
    shots = sorted(values)
    means = [float(np.mean(values[k])) for k in shots]
    sigmas = [float(np.std(values[k], ddof=1)) if len(values[k]) > 1 else None for k in shots]
    return Curve(shots, means, sigmas)


def _json(content: dict[str, Any]) -> str:
    """Return JSON with one line per entry."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n }"


_TEST_TITLES = {
    "features": "",
    "rows": "New rows, by their observations: ",
    "both": "New features in new rows, by the observations of each: ",
}


@dataclass(frozen=True)
class TextTable:
    """A table of texts, to be shown as Markdown, as HTML or on a terminal."""

    title: str
    shots: list[int]
    cells: dict[str, list[str]]  # by method, one text per number of shots; empty without a value
    best: dict[int, str]  # by shots, the best method
    corner: str = "shots"  # the heading of the first column: the name of the numbers in the first line

    def lines(self) -> list[tuple[str, ...]]:
        """Return one line per method: its name and its texts."""
        return [(method, *texts) for method, texts in self.cells.items()]

    def to_markdown(self) -> str:
        """Return a Markdown table with the best of each column in bold."""
        lines = [
            f"| {self.corner} | " + " | ".join(str(k) for k in self.shots) + " |",
            "|---|" + "---:|" * len(self.shots),
        ]
        for method, texts in self.cells.items():
            marked = [
                f"**{text}**" if text and self.best.get(k) == method else text
                for k, text in zip(self.shots, texts, strict=True)
            ]
            lines.append(f"| {markdown_text(method)} | " + " | ".join(marked) + " |")
        return "\n".join(lines)


def metric_table(results: Results, metric: str, test: Test = "features") -> TextTable:
    """Return the table of one metric in one test: mean ± 1σ over splits."""
    curves, kind = results.curves(metric, test), metric_of(metric)
    shots = results.shots_of(test)
    digits = decimals(mean for curve in curves.values() for mean in curve.mean)
    cells = {method: _texts(curve, shots, digits) for method, curve in curves.items()}
    best = {}
    for k in shots:
        means = {m: dict(zip(c.shots, c.mean, strict=True)).get(k, math.nan) for m, c in curves.items()}
        if any(math.isfinite(mean) for mean in means.values()):
            best[k] = list(means)[kind.best(np.array(list(means.values())))]
    corner = "shots" if test == "features" else "observations"
    return TextTable(f"{_TEST_TITLES[test]}{kind.label} ({kind.direction})", shots, cells, best, corner)


def timing_table(timings: Sequence[Timing]) -> TextTable:
    """Return the table of times per feature: median over splits, fastest and slowest round."""
    shots = sorted({timing.shots for timing in timings})
    cells: dict[str, list[str]] = {}
    for method in dict.fromkeys(timing.method for timing in timings):
        texts = []
        for k in shots:
            rounds = [timing for timing in timings if timing.method == method and timing.shots == k]
            texts.append(_time_text(rounds) if rounds else "")
        cells[method] = texts
    return TextTable("Milliseconds per feature: median (fastest–slowest)", shots, cells, {})


def _time_text(timings: Sequence[Timing]) -> str:
    median = float(np.median([timing.ms_per_feature for timing in timings]))
    low, high = min(timing.low for timing in timings), max(timing.high for timing in timings)
    return f"{median:.2g} ({low:.2g}–{high:.2g})"


def decimals(values: Iterable[float]) -> int:
    """Return the number of decimals for ``values`` of this size: three for values from 0.1 to 10.

    >>> decimals([0.93, 1.04]), decimals([312.0]), decimals([0.004])
    (3, 1, 5)
    """
    largest = max((abs(value) for value in values), default=0.0)
    size = math.floor(math.log10(largest)) if largest > 0 else 0
    return max(0, 3 - size) if size >= 0 else min(8, max(3, 2 - size))


def markdown_text(text: object) -> str:
    """Escape the characters that have a meaning in Markdown.

    >>> print(markdown_text("a|b*c"))
    a\\|b\\*c
    """
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else " " if c in "\r\n" else c for c in str(text))


def _texts(curve: Curve, shots: list[int], digits: int) -> list[str]:
    texts = {
        k: f"{mean:.{digits}f}" + ("" if sigma is None else f" ± {sigma:.{digits}f}")
        for k, mean, sigma in zip(curve.shots, curve.mean, curve.sigma, strict=True)
    }
    return [texts.get(k, "") for k in shots]


class Timing(Config):
    """Milliseconds per feature to compute a head: median, fastest and slowest of several rounds."""

    method: str
    shots: int
    ms_per_feature: float
    low: float  # fastest round
    high: float  # slowest round


def time_adapters(
    adapters: Mapping[str, Adapter],
    contexts: Mapping[int, FeatureBatch],
    states: RowStates,
    rounds: int = 5,
) -> list[Timing]:
    """Time every adapter at every number of shots (the keys of ``contexts``), in batches of 128 features.

    If there are fewer features, they are repeated to fill a batch. The first call of each adapter is not
    measured. Then the adapters take turns, so that other load on the machine affects all of them. With one
    thread the time is that of the processor, which other load affects little; otherwise it is elapsed time.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    batches = {shots: context.take(torch.arange(BATCH) % len(context)) for shots, context in contexts.items()}
    times: dict[tuple[str, int], list[float]] = {(name, k): [] for name in adapters for k in batches}
    with torch.no_grad():
        refined = {name: adapter.refine(states) for name, adapter in adapters.items()}
        for turn in range(-1, rounds):  # turn -1 only warms up
            for shots, batch in batches.items():
                for name, adapter in adapters.items():
                    start = clock()
                    adapter.adapt(batch, refined[name])
                    if turn >= 0:
                        times[name, shots].append((clock() - start) * 1000 / BATCH)
    return [
        Timing(method=name, shots=k, ms_per_feature=float(np.median(ms)), low=min(ms), high=max(ms))
        for (name, k), ms in times.items()
    ]
