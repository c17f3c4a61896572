"""What a model says of itself: what was chosen, what metadata contributes, how large errors are expected."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.model.state import ModelState
from headstart.training.judge import Judgement


@dataclass(frozen=True)
class ExpectedError:
    """The error to expect of a new feature with so many observations.

    It is the root of the mean squared error over features that were held out from everything, in the
    data's units where all features share them, otherwise in units of the models' scale.
    """

    shots: int
    error: float
    standard_error: float


@dataclass(frozen=True)
class ModelInfo:
    """Facts about a fitted model, for a person to read: ``print(model.info)``.

    Attributes
    ----------
    backbone, adapter : str
        The parts that were trained.
    chosen : str or None
        What the judge chose, if it chose.
    judged_on : int
        How many features were held out to choose and calibrate.
    errors : list of ExpectedError
        The error to expect by shots; empty where nothing was held out.
    metadata : dict
        By metadata column, the share of the error of predicted heads that it removes; 0 for a column
        that is not used.
    rows, features, added : int
        How many rows and features there are, and how many features came after ``fit``.
    """

    backbone: str
    adapter: str
    chosen: str | None
    judged_on: int
    errors: list[ExpectedError]
    metadata: dict[str, float]
    rows: int
    features: int
    added: int

    def lines(self) -> list[tuple[str, str]]:
        """The facts as (label, text)."""
        facts = [
            ("backbone", self.backbone),
            ("adapter", self.adapter),
            ("rows", str(self.rows)),
            ("features", f"{self.features}, {self.added} of them added after fit"),
        ]
        if self.chosen is not None and self.judged_on:
            facts.append(("chosen", f"{self.chosen}, judged on {self.judged_on} features held out"))
        if self.errors:
            parts = (f"{each.error:.3g} ± {each.standard_error:.1g} ({each.shots})" for each in self.errors)
            facts.append(("error by shots", ", ".join(parts)))
        if self.metadata:
            used = sorted(self.metadata.items(), key=lambda pair: -pair[1])
            parts = (f"{name} {share:.0%}" if share > 0 else f"{name} not used" for name, share in used)
            facts.append(("metadata", ", ".join(parts)))
        return facts

    def __str__(self) -> str:
        return "\n".join(f"{label}: {text}" for label, text in self.lines())


def info_of(fitted: ModelState) -> ModelInfo:
    """Gather the facts about a fitted model."""
    features = list(fitted.catalogue.values())
    judgement = fitted.judgement
    return ModelInfo(
        backbone=fitted.settings.backbone.name,
        adapter=fitted.settings.chosen_adapter.name,
        chosen=None if judgement is None else judgement.chosen,
        judged_on=0 if judgement is None else judgement.features,
        errors=[] if judgement is None else expected_errors(fitted, judgement),
        metadata=_contributions(fitted),
        rows=len(fitted.rows),
        features=len(features),
        added=sum(not feature.in_backbone for feature in features),
    )


def expected_errors(fitted: ModelState, judgement: Judgement) -> list[ExpectedError]:
    """The errors of what was chosen, by shots."""
    if not judgement.candidates:
        return []
    verdict = judgement.candidates[judgement.chosen]
    span = fitted.kinds[0].span if len(fitted.kinds) == 1 else 1.0
    found = []
    for shots, squared, spread in zip(judgement.shots, verdict.error, verdict.standard_error, strict=True):
        root = max(squared, 1e-12) ** 0.5
        found.append(ExpectedError(shots, span * root, span * spread / (2 * root)))  # of the root
    return found


def _contributions(fitted: ModelState) -> dict[str, float]:
    if fitted.schema is None or not fitted.adapter.explainable:
        return {}
    names = [column.name for column in fitted.schema.columns]
    return dict(zip(names, fitted.adapter.metadata_gains.tolist(), strict=True))
