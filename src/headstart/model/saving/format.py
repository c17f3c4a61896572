"""What a saved model consists of: facts in ``model.json`` and tensors in one file of weights."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat
from torch import Tensor

from headstart.adapters.registry import ADAPTERS
from headstart.backbones.registry import BACKBONES
from headstart.config import Config
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.settings import Settings
from headstart.model.parts.staleness import NOTHING, Arrived
from headstart.model.saving.aging import time_tensors
from headstart.model.saving.metadata import record_tensors, row_metadata_tensors
from headstart.model.saving.row_observations import row_observation_tensors
from headstart.table import MetadataSchema
from headstart.training.judge import Judgement

FORMAT = 3  # 2 did not hold all that defines a model; 1 had no heads with a covariance

Name = Annotated[str, Field(min_length=1)]


class FeatureFacts(Config):
    """The features of a model, one entry per feature in each list."""

    names: tuple[Name, ...]
    kinds: tuple[str, ...]
    in_backbone: tuple[bool, ...]
    shots: tuple[Annotated[int, Field(ge=0)], ...]
    finds_scale: tuple[bool, ...]
    # Those of the backbone that were observed after fit. None in a model saved before this was kept.
    observed_since: tuple[bool, ...] | None = None


class ModelFacts(Config):
    """All of ``model.json`` but its checksum."""

    format: Literal[3] = 3
    weights: str = Field(pattern=r"^weights-[0-9a-f]{16}\.safetensors$")  # so it lies inside the folder
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    packages: dict[Literal["backbone", "adapter", "base"], str]  # where these parts come from
    settings: Settings
    kinds: tuple[str, ...]
    metadata: MetadataSchema | None
    features: FeatureFacts
    backbone_features: tuple[Name, ...]
    judgement: Judgement | None  # how it was chosen
    middle: str | None  # the kind of new reals whose own center and scale are yet to be found
    streams: tuple[Name, ...]  # the features whose sums are kept
    rows: tuple[Name, ...]
    row_metadata: MetadataSchema | None = None
    arrived: Arrived = NOTHING  # how well was foreseen what was observed since fit
    # The newest time there was at fit and the newest now, of a model whose observations age.
    times: tuple[FiniteFloat, FiniteFloat] | None = None


def checksum(facts: dict[str, Any]) -> str:
    """A digest of facts as read from JSON, whatever their order and layout."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def facts_of(fitted: Fitted, weights: str, digest: str) -> ModelFacts:
    """The facts of a model whose weights file has this name and digest."""
    features, settings = list(fitted.catalogue.values()), fitted.settings
    return ModelFacts(
        weights=weights,
        weights_sha256=digest,
        packages=_packages(settings),
        settings=settings,
        kinds=[str(kind) for kind in fitted.kinds],
        metadata=fitted.schema,
        features=FeatureFacts(
            names=[feature.name for feature in features],
            kinds=[str(feature.kind) for feature in features],
            in_backbone=[feature.in_backbone for feature in features],
            shots=[feature.shots for feature in features],
            finds_scale=[feature.finds_scale for feature in features],
            observed_since=[feature.observed_since for feature in features],
        ),
        backbone_features=list(fitted.backbone_features),
        judgement=fitted.judgement,
        middle=None if fitted.middle is None else str(fitted.middle),
        streams=list(fitted.catalogue.evidence_at(fitted.roster.epoch)),
        rows=list(fitted.rows),
        row_metadata=None if fitted.row_metadata is None else fitted.row_metadata.schema,
        arrived=fitted.arrived,
        times=None if fitted.clock is None else (fitted.clock.fitted_at, fitted.clock.now),
    )


def _packages(settings: Settings) -> dict[str, str]:
    """The installed packages that the parts come from."""
    packages = {
        "backbone": BACKBONES.origin(settings.backbone),
        "adapter": ADAPTERS.origin(settings.chosen_adapter),
    }
    base = getattr(settings.chosen_adapter, "base", None)
    return packages if base is None else {**packages, "base": ADAPTERS.origin(base)}


def tensors_of(fitted: Fitted) -> dict[str, Tensor]:
    """The tensors of a model, by name."""
    features, heads = fitted.catalogue.take(list(fitted.catalogue))
    knowledge = fitted.knowledge
    width = knowledge.metadata.shape[1]
    tensors = {
        "features/metadata": _stacked([feature.metadata for feature in features], width),
        "contexts/counts": torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64),
        "contexts/rows": _joined([feature.rows for feature in features], np.int64),
        "contexts/values": _joined([feature.values for feature in features], np.float64),
        "knowledge/metadata": knowledge.metadata,
        "knowledge/indptr": knowledge.cells.indptr,
        "knowledge/index": knowledge.cells.index.int(),
        "knowledge/values": knowledge.cells.values,
        "knowledge/kinds": knowledge.kinds,
        "backbone_grid": fitted.backbone.grid,
    }
    parts: dict[str, Any] = {
        "calibration": fitted.calibration,
        "features": heads,
        "knowledge/heads": knowledge.heads,
        "knowledge/states": knowledge.states,
        "states": fitted.states,
    }
    if knowledge.scales is not None:
        parts["knowledge/scales"] = knowledge.scales
    for prefix, part in parts.items():
        tensors |= {f"{prefix}/{name}": value for name, value in vars(part).items() if value is not None}
    if sums := fitted.catalogue.evidence_at(fitted.roster.epoch):
        tensors["streams"] = torch.cat(list(sums.values()))
    tensors |= row_observation_tensors(fitted) | record_tensors(fitted) | row_metadata_tensors(fitted)
    tensors |= time_tensors(fitted)
    tensors |= {f"backbone/{name}": value for name, value in fitted.backbone.state_dict().items()}
    tensors |= {f"adapter/{name}": value for name, value in fitted.adapter.state_dict().items()}
    return tensors


def _stacked(lines: list[NDArray[np.float32]], width: int) -> Tensor:
    return torch.from_numpy(np.stack(lines) if lines else np.zeros((0, width), dtype=np.float32))


def _joined(parts: list[NDArray[Any]], kind: type) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, dtype=kind)]))
