"""Summarise the runs of a folder: means over splits, ranks, and differences to the best reference."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from generality.methods import METHODS, REFERENCES
from generality.tables import TABLES

MAIN = ("rmse", "auroc")
ALLOWED = {"rmse": 0.5, "auroc": 0.4}  # behind the best reference: % of it, or hundredths of AUROC
NOISE = 0.1  # so little behind biases is chance: % or hundredths


class Place(NamedTuple):
    """The table, test, metric and shots of a score."""

    table: str
    variant: str
    test: str  # features, rows or both
    metric: str
    shots: int


@dataclass(frozen=True)
class Summary:
    """Mean scores of all methods by place, with their runs."""

    scores: dict[Place, dict[str, float]]
    records: list[dict[str, Any]]

    @classmethod
    def of(cls, *folders: Path) -> Summary:
        """Read all runs of these folders; a run that failed has no scores."""
        paths = [path for folder in folders for path in sorted(folder.glob("*/*/*/split-*.json"))]
        records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        found: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for record in records:
            for test in record.get("tests", ()):
                for metric, value in test["scores"].items():
                    place = Place(record["table"], record["variant"], test["test"], metric, test["shots"])
                    found[place][record["method"]].append(value)
        scores = {
            place: {method: float(np.mean(values)) for method, values in by_method.items()}
            for place, by_method in found.items()
        }
        return cls(scores, records)

    @property
    def methods(self) -> list[str]:
        """All methods with a run: references first."""
        present = {record["method"] for record in self.records}
        return [*(m for m in METHODS if m in present), *sorted(present - set(METHODS))]

    @property
    def tables(self) -> list[str]:
        """All tables with a run, in the battery's order."""
        present = {record["table"] for record in self.records}
        return [*(t for t in TABLES if t in present), *sorted(present - set(TABLES))]

    def places(self, test: str, variant: str = "plain", metrics: tuple[str, ...] = MAIN) -> list[Place]:
        """Return the places of a test in the order of tables, metrics and shots."""
        order = {table: i for i, table in enumerate(self.tables)}
        here = [p for p in self.scores if p.test == test and p.variant == variant and p.metric in metrics]
        return sorted(here, key=lambda p: (order[p.table], metrics.index(p.metric), p.shots))

    def best_reference(self, place: Place) -> tuple[str, float] | None:
        """Return the best reference at a place by mean score; None if none was run."""
        scores = {name: value for name, value in self.scores[place].items() if name in REFERENCES}
        if not scores:
            return None
        name = (max if place.metric == "auroc" else min)(scores, key=lambda name: scores[name])
        return name, scores[name]

    def gain(self, place: Place, method: str, other: float | None = None) -> float | None:
        """Return the gain over the best reference or another score: % of RMSE, hundredths of AUROC."""
        mine = self.scores[place].get(method)
        if other is None:
            found = self.best_reference(place)
            other = None if found is None else found[1]
        if mine is None or other is None:
            return None
        return 100 * (mine - other) if place.metric == "auroc" else 100 * (other - mine) / other

    def within(self, place: Place, method: str) -> bool | None:
        """Return whether the method is at most the allowed distance behind the best reference."""
        if method not in self.scores[place]:
            return False if self.failed(place, method) else None
        gain = self.gain(place, method)
        return None if gain is None else gain >= -ALLOWED[place.metric]

    def behind_biases(self, place: Place, method: str) -> bool:
        """Return whether the method is behind row and column means by more than chance."""
        gain = self.gain(place, method, self.scores[place].get("biases"))
        return "biases" in self.scores[place] and gain is not None and gain < -NOISE

    def failed(self, place: Place, method: str) -> bool:
        """Return whether a run of the method on this table failed."""
        return any(
            "error" in record
            and (record["table"], record["variant"], record["method"]) == (*place[:2], method)
            for record in self.records
        )

    def mean_ranks(self, test: str) -> dict[str, float]:
        """Return the mean rank of each method over the places of a test where all methods were run.

        A failed run ranks last; methods that cannot do the test at all have no rank.
        """
        places = self.places(test)
        names = [name for name in self.methods if any(name in self.scores[place] for place in places)]
        ranks: list[list[float]] = []
        for place in places:
            sign = -1 if place.metric == "auroc" else 1
            found = {name: sign * value for name, value in self.scores[place].items()}
            found |= {name: np.inf for name in names if name not in found and self.failed(place, name)}
            if len(found) == len(names):
                ranks.append(rankdata([found[name] for name in names]).tolist())
        return dict(zip(names, np.mean(ranks, axis=0).tolist(), strict=True)) if ranks else {}
