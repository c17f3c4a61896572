"""The numbers of a benchmark, in one stable file format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from headstart.errors import InputError
from headstart.evaluate.metrics import METRICS
from headstart.evaluate.tables import metric_table
from headstart.storage import write_bytes

FORMAT = 1


class Run(BaseModel):
    """One number: a metric of one method at one number of shots, on one split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: int
    method: str
    shots: int
    metric: str
    value: FiniteFloat
    features: int  # number of features that the value was computed from
    targets: int  # number of their cells
    ms_per_feature: float | None = None  # milliseconds to compute one head at these shots


class Curve(NamedTuple):
    """A metric of one method by shots: mean and standard deviation over splits."""

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
        One record per split, method, number of shots and metric.
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
            return cls(**content)
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
        """Join the runs of several splits, in the order of split, method, shots and metric."""
        methods = {method: i for i, method in enumerate(settings.get("methods", []))}
        metrics = {metric: i for i, metric in enumerate(METRICS)}

        def place(run: Run) -> tuple[int, int, int, int]:
            return (
                run.split,
                methods.get(run.method, len(methods)),
                run.shots,
                metrics.get(run.metric, len(metrics)),
            )

        return cls(data=data, settings=settings, runs=sorted((r for part in parts for r in part), key=place))

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of their first runs."""
        return list(dict.fromkeys(run.method for run in self.runs))

    @property
    def shots(self) -> list[int]:
        """The numbers of shots in ascending order."""
        return sorted({run.shots for run in self.runs})

    @property
    def metrics(self) -> list[str]:
        """The metrics that the runs have, the main ones first."""
        names = dict.fromkeys(run.metric for run in self.runs)
        return [name for name in METRICS if name in names] + [name for name in names if name not in METRICS]

    @property
    def splits(self) -> int:
        """The number of splits."""
        return len({run.split for run in self.runs})

    def curves(self, metric: str) -> dict[str, Curve]:
        """Return the mean and standard deviation over splits of a metric, by method and shots."""
        values: dict[str, dict[int, list[float]]] = {}
        for run in self.runs:
            if run.metric == metric:
                values.setdefault(run.method, {}).setdefault(run.shots, []).append(run.value)
        return {method: _curve(by_shots) for method, by_shots in values.items()}

    def to_markdown(self) -> str:
        """Return one Markdown table per metric with mean ± 1σ over splits, the best in bold."""
        tables = [metric_table(self, metric) for metric in self.metrics]
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
