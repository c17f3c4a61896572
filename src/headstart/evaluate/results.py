"""The numbers of a benchmark, in one stable file format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError, model_validator

from headstart.errors import InputError
from headstart.evaluate.metrics import METRICS
from headstart.evaluate.tables import metric_table
from headstart.storage import write_bytes

FORMAT = 2  # 2: runs can be of held-out rows; files of format 1 have none

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
    features: int  # number of features that the value was computed from
    targets: int  # number of their cells
    ms_per_feature: float | None = None  # milliseconds to compute one head at these shots

    @property
    def test(self) -> Test:
        """What was new: the features, the rows or both."""
        if self.row_shots is None:
            return "features"
        return "rows" if self.shots is None else "both"

    @property
    def given(self) -> int:
        """The number of observations of what was new."""
        return next(number for number in (self.shots, self.row_shots) if number is not None)

    @model_validator(mode="after")
    def _something_is_new(self) -> Run:
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
        The settings as plain JSON. ``settings["used"]`` are those that really ran, with every default
        filled in.
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
            return cls(**{**content, "format": FORMAT})  # what format 1 has means the same in format 2
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
    def merged(
        cls, data: dict[str, Any], settings: dict[str, Any], parts: Iterable[Iterable[Run]]
    ) -> Results:
        """Join the runs of several splits, by split, method, test, observations and metric."""
        methods = {method: i for i, method in enumerate(settings.get("methods", []))}
        metrics = {metric: i for i, metric in enumerate(METRICS)}

        def place(run: Run) -> tuple[int, int, int, int, int]:
            return (
                run.split,
                methods.get(run.method, len(methods)),
                TESTS.index(run.test),
                run.given,
                metrics.get(run.metric, len(metrics)),
            )

        return cls(data=data, settings=settings, runs=sorted((r for part in parts for r in part), key=place))

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
        """The metrics that the test of new features has, the main ones first."""
        return self.metrics_of("features")

    @property
    def splits(self) -> int:
        """The number of splits."""
        return len({run.split for run in self.runs})

    def shots_of(self, test: Test) -> list[int]:
        """Return the numbers of observations that a test has in ascending order."""
        return sorted({run.given for run in self.runs if run.test == test})

    def metrics_of(self, test: Test) -> list[str]:
        """Return the metrics that a test has, the main ones first."""
        names = dict.fromkeys(run.metric for run in self.runs if run.test == test)
        return [name for name in METRICS if name in names] + [name for name in names if name not in METRICS]

    def curves(self, metric: str, test: Test = "features") -> dict[str, Curve]:
        """Return the mean and standard deviation over splits of a metric, by method and observations.

        Parameters
        ----------
        metric : str
            Name of the metric, see ``METRICS``.
        test : {"features", "rows", "both"}, default="features"
            What was new: features by their shots, rows by their observations, or both.

        Returns
        -------
        dict of str to Curve
            By method; empty if the test has no such metric.
        """
        values: dict[str, dict[int, list[float]]] = {}
        for run in self.runs:
            if run.metric == metric and run.test == test:
                values.setdefault(run.method, {}).setdefault(run.given, []).append(run.value)
        return {method: _curve(by_shots) for method, by_shots in values.items()}

    def to_markdown(self) -> str:
        """Return one Markdown table per test and metric with mean ± 1σ over splits, the best in bold."""
        tables = [metric_table(self, name, test) for test in TESTS for name in self.metrics_of(test)]
        return "\n\n".join(f"## {table.title}\n\n{table.to_markdown()}" for table in tables)


def _curve(values: dict[int, list[float]]) -> Curve:
    shots = sorted(values)
    means = [float(np.mean(values[k])) for k in shots]
    sigmas = [float(np.std(values[k], ddof=1)) if len(values[k]) > 1 else None for k in shots]
    return Curve(shots, means, sigmas)


def _json(content: dict[str, Any]) -> str:
    """Return JSON with one line per entry."""
    lines = [f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n }"
