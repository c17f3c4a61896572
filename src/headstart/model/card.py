"""Describe a fitted model on one page: ``ModelCard`` is the result of ``Headstart.card``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from headstart.display import count, facts_html
from headstart.evaluate.results import markdown_text
from headstart.model.staleness import staleness_of
from headstart.model.state import ModelState
from headstart.model.summary import ModelInfo, describe_model
from headstart.table.kinds import Kinds, KindType, feature_kinds
from headstart.training.calibration import USUAL_LEVEL

_SHOTS = (0, 4, 32)  # numbers of observations at which the calibration is described


@dataclass(frozen=True, repr=False)
class ModelCard:
    """The facts that a user of a model should know, by section.

    Attributes
    ----------
    sections : dict of str to dict of str to str
        By section, the facts by label: the data, the training, the expected error of a new feature by its
        number of observations, the calibration, the contribution of each metadata column, the staleness, and
        for a saved model its files.
    """

    sections: dict[str, dict[str, str]]

    def to_markdown(self, title: str = "Model card") -> str:
        """Return the card as Markdown, with one table per section."""
        parts = [f"# {markdown_text(title)}"]
        for heading, facts in self.sections.items():
            lines = [f"| {markdown_text(label)} | {markdown_text(fact)} |" for label, fact in facts.items()]
            parts += [f"## {heading}", "\n".join(["| | |", "|---|---|", *lines])]
        return "\n\n".join(parts) + "\n"

    def to_html(self) -> str:
        """Return the card as a part of an HTML page."""
        return "\n".join(
            f"<h2>{escape(heading)}</h2>\n{facts_html(facts.items())}"
            for heading, facts in self.sections.items()
        )

    def __str__(self) -> str:
        return "\n\n".join(
            f"{heading}\n" + "\n".join(f"  {label}: {fact}" for label, fact in facts.items())
            for heading, facts in self.sections.items()
        )

    __repr__ = __str__
    _repr_html_ = to_html


def describe_on_card(model: ModelState, files: Mapping[str, str] | None = None) -> ModelCard:
    """Return the card of a model; ``files`` are facts about the folder that it is saved in."""
    info = describe_model(model)
    sections = {
        "Data": _data(model, info),
        "Training": _training(model, info),
        "Expected error of a new feature": _errors(model, info),
        "Calibration": _calibration(model),
        "Metadata": _metadata(info),
        "Since the fit": {"staleness": str(staleness_of(model.arrived, len(model.knowledge.cells.index)))},
        "Files": dict(files or {}),
    }
    return ModelCard({heading: facts for heading, facts in sections.items() if facts})


def _data(model: ModelState, info: ModelInfo) -> dict[str, str]:
    store, rows = model.feature_store, len(model.knowledge.cells)
    other_levels = {column for columns in store.categories.values() for column in columns[1:]}
    counted = np.array([name not in other_levels for name in model.backbone_features], dtype=bool)
    observations = int(counted[model.knowledge.cells.index.numpy()].sum())  # an answer to a category is one
    features = info.features - info.added
    density = observations / max(1, rows * features)
    row_schema = None if model.row_metadata is None else model.row_metadata.schema
    return {
        "rows": f"{info.rows}, {info.rows - rows} of them added after fit",
        "features": f"{info.features}, {info.added} of them added after fit",
        "observations of the fit": f"{observations} ({density:.2%} of the cells)",
        "kinds": feature_kinds(list(store), Kinds([feature.kind for feature in store.values()])).summary(),
        "metadata of features": info.columns,
        "metadata of rows": "none" if row_schema is None else row_schema.describe(),
    }


def _training(model: ModelState, info: ModelInfo) -> dict[str, str]:
    from headstart import __version__

    settings = model.settings
    chosen = f", chosen on {info.judged_on} features held out" if info.chosen and info.judged_on else ""
    half_life = "none" if settings.half_life is None else str(settings.half_life)
    return {
        "backbone": info.backbone,
        "adapter": f"{info.adapter}{chosen}",
        "half-life of observations": half_life,
        "random_state": str(settings.random_state),
        "headstart": __version__,
    }


def _errors(model: ModelState, info: ModelInfo) -> dict[str, str]:
    if not info.errors:
        return {"root mean squared error": "not known: no feature was held out"}
    unit = "in the data's own units" if len(model.kinds) == 1 else "on the models' scale"
    clicks = all(kind.type == KindType.CLICK for kind in model.kinds)
    measure = info.unit if clicks else f"root mean squared error {unit}"
    means = {item.shots: item.error for item in info.means}
    errors = {
        count(item.shots, "observation"): f"{item.error:.3g}"
        + (f" ± {item.standard_error:.1g}" if item.standard_error > 0 else "")
        + (f"; row and column means {means[item.shots]:.3g}" if item.shots in means else "")
        for item in info.errors
    }
    return {"measure": f"{measure}, ± its standard error", **errors}


def _calibration(model: ModelState) -> dict[str, str]:
    calibration, facts = model.calibration, {}
    marks = calibration.marks.tolist()
    at = {shots: min(range(len(marks)), key=lambda i: abs(marks[i] - shots)) for shots in _SHOTS}
    for kind in sorted({kind.type for kind in model.kinds}):
        if kind == KindType.BINARY:
            texts = [f"{float(calibration.slopes[at[shots]]):.2f} ({shots})" for shots in _SHOTS]
            facts["log-odds multiplied by (observations)"] = ", ".join(texts)
        elif kind == KindType.CLICK:
            texts = [f"{float(calibration.click_slopes[at[shots]]):.2f} ({shots})" for shots in _SHOTS]
            facts["log-odds of clicks multiplied by (observations)"] = ", ".join(texts)
        elif kind < len(calibration.factors):
            factors = calibration.factors[kind, :, USUAL_LEVEL]
            texts = [f"{float(factors[at[shots]]):.2f} ({shots})" for shots in _SHOTS]
            name = KindType(kind).name.lower()
            facts[f"90 % intervals of {name} multiplied by (observations)"] = ", ".join(texts)
    meaning = {"meaning": "factors that make the intervals of held-out features contain 90 % of their values"}
    return {**facts, **meaning} if facts else {}


def _metadata(info: ModelInfo) -> dict[str, str]:
    shares = sorted(info.metadata.items(), key=lambda pair: -pair[1])
    if not shares:
        return {}
    meaning = "share of the error of heads without observations that a column removes"
    return {
        "meaning": meaning,
        **{name: f"{share:.0%}" if share > 0 else "not used" for name, share in shares},
    }
