"""Convert a model to facts and tensors and back."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat
from torch import Tensor

from headstart.adapters.base import ADAPTERS
from headstart.backbones.base import BACKBONES
from headstart.config import Config
from headstart.core.types import RowPrior, RowStates
from headstart.errors import InputError
from headstart.model.features import FeatureStore
from headstart.model.rows import RowCells, RowMetadata, RowObservations, RowStore
from headstart.model.state import NOTHING, Arrived, Clock, ModelState, Settings
from headstart.table import MetadataSchema, Names
from headstart.table.metadata import as_array, as_bytes, records_from
from headstart.training.judge import Judgement

Groups = dict[str, dict[str, Tensor]]

FORMAT = 1

Name = Annotated[str, Field(min_length=1)]


class FeatureFacts(Config):
    """The features of a model, one entry per feature in each list."""

    names: tuple[Name, ...]
    kinds: tuple[str, ...]
    in_backbone: tuple[bool, ...]
    shots: tuple[Annotated[int, Field(ge=0)], ...]
    finds_scale: tuple[bool, ...]
    observed_since: tuple[bool, ...]  # whether a feature of the backbone was observed after fit


class ModelFacts(Config):
    """The content of ``model.json`` except its checksum."""

    format: Literal[1] = 1
    weights: str = Field(pattern=r"^weights-[0-9a-f]{16}\.safetensors$")  # so it is inside the folder
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    packages: dict[Literal["backbone", "adapter", "base"], str]  # which install these parts
    settings: Settings
    kinds: tuple[str, ...]
    metadata: MetadataSchema | None
    features: FeatureFacts
    backbone_features: tuple[Name, ...]
    judgement: Judgement | None  # how the adapter was chosen
    middle: str | None  # the kind of new real features whose own center and scale are not known yet
    streams: tuple[Name, ...]  # the features whose sufficient statistics are stored
    rows: tuple[Name, ...]
    row_metadata: MetadataSchema | None = None
    arrived: Arrived = NOTHING  # errors of the predictions of observations made since fit
    # The newest time at fit and the newest time now, of a model whose observations age.
    times: tuple[FiniteFloat, FiniteFloat] | None = None


def checksum(facts: dict[str, Any]) -> str:
    """Return a digest of facts as read from JSON, independent of their order and layout."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def model_facts(fitted: ModelState, weights: str, digest: str) -> ModelFacts:
    """Return the facts of a model whose file of weights has the name ``weights`` and this digest."""
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
    """Return the names of the packages that install the backbone, the adapter and its base."""
    packages = {
        "backbone": BACKBONES.origin(settings.backbone),
        "adapter": ADAPTERS.origin(settings.chosen_adapter),
    }
    base = getattr(settings.chosen_adapter, "base", None)
    return packages if base is None else {**packages, "base": ADAPTERS.origin(base)}


def model_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the tensors of a model, by name."""
    features, heads = fitted.catalogue.take(list(fitted.catalogue))
    knowledge = fitted.knowledge
    width = knowledge.metadata.shape[1]
    tensors = {
        "features/metadata": _stack([feature.metadata for feature in features], width),
        "contexts/counts": torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64),
        "contexts/rows": _concatenate([feature.rows for feature in features], np.int64),
        "contexts/values": _concatenate([feature.values for feature in features], np.float64),
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
    if statistics := fitted.catalogue.evidence_at(fitted.roster.epoch):
        tensors["streams"] = torch.cat(list(statistics.values()))
    tensors |= row_observation_tensors(fitted) | record_tensors(fitted) | row_metadata_tensors(fitted)
    tensors |= time_tensors(fitted)
    tensors |= {f"backbone/{name}": value for name, value in fitted.backbone.state_dict().items()}
    tensors |= {f"adapter/{name}": value for name, value in fitted.adapter.state_dict().items()}
    return tensors


def _stack(vectors: list[NDArray[np.float32]], width: int) -> Tensor:
    return torch.from_numpy(np.stack(vectors) if vectors else np.zeros((0, width), dtype=np.float32))


def _concatenate(parts: list[NDArray[Any]], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, dtype=dtype)]))


def time_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the times of the table's and the features' observations; none if observations do not age."""
    if fitted.clock is None:
        return {}
    features = list(fitted.catalogue.values())
    times = [np.zeros(0), *(feature.times for feature in features if feature.times is not None)]
    now = [fitted.clock.fitted_at if feature.now is None else feature.now for feature in features]
    return {
        "times/table": torch.from_numpy(fitted.clock.table),
        "times/contexts": torch.from_numpy(np.concatenate(times)),
        "times/heads": torch.tensor(now, dtype=torch.float64),
    }


def read_clock(facts: ModelFacts, groups: Groups) -> Clock | None:
    """Return the clock of a saved model; the model must have times if it has a half-life, and only then."""
    half_life, times = facts.settings.half_life, groups.get("times")
    if half_life is None and facts.times is None and times is None:
        return None
    if half_life is None or facts.times is None or times is None:
        raise InputError("it does not say all of how its observations age")
    sizes = {
        "table": len(groups["knowledge"]["values"]),
        "contexts": len(groups["contexts"]["values"]),
        "heads": len(facts.features.names),
    }
    if any(len(times[name]) != size for name, size in sizes.items()):
        raise InputError("its times do not agree with its observations")
    observations = groups.get("row_observations")
    if observations is not None and not {"times", "now"} <= set(observations):
        raise InputError("it does not say when its rows observed")
    return Clock(half_life, facts.times[1], facts.times[0], times["table"].numpy())


def table_weights(clock: Clock | None) -> Tensor | None:
    """Return the weights of the table's observations at fit, (n,); None if they do not age."""
    return None if clock is None else torch.from_numpy(clock.weights(clock.table, clock.fitted_at)).float()


def read_feature_times(
    groups: Groups, counts: list[int]
) -> tuple[list[NDArray[np.float64]] | list[None], list[float] | list[None]]:
    """Return the times of each feature's observations, and the times at which heads were computed."""
    times = groups.get("times")
    if times is None:
        return [None] * len(counts), [None] * len(counts)
    return [part.numpy() for part in torch.split(times["contexts"], counts)], times["heads"].tolist()


def record_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the metadata of all features as the user passed it; none if the model has no metadata."""
    if fitted.schema is None:
        return {}
    records = [feature.record or {} for feature in fitted.catalogue.values()]
    return {"records": as_bytes(records, [column.name for column in fitted.schema.columns])}


def row_metadata_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the metadata of rows and the prior of rows given it; none if the model has no row metadata."""
    metadata = fitted.row_metadata
    if metadata is None:
        return {}
    columns = [column.name for column in metadata.schema.columns]
    tensors = {
        "rows/metadata": torch.from_numpy(metadata.encoded),
        "rows/records": as_bytes(metadata.lines.to_pylist(), columns),
    }
    prior = {} if metadata.prior is None else vars(metadata.prior)
    return tensors | {f"row_prior/{name}": part for name, part in prior.items()}


def read_row_metadata(facts: ModelFacts, groups: Groups, width: int, rows: int) -> RowMetadata | None:
    """Return the metadata of the ``rows`` rows of a saved model whose activations have ``width`` numbers."""
    tensors, schema = groups.get("rows"), facts.row_metadata
    if tensors is None or schema is None:
        if tensors is not None or schema is not None or "row_prior" in groups:
            raise InputError("its metadata of rows is not complete")
        return None
    columns = [column.name for column in schema.columns]
    records = [record or {} for record in records_from(tensors["records"], rows)]
    lines = pa.table({name: as_array([record.get(name) for record in records]) for name in columns})
    prior = RowPrior(**groups["row_prior"]) if "row_prior" in groups else None
    consistent = tensors["metadata"].shape == (rows, schema.width)
    if prior is not None:
        consistent = consistent and (
            prior.matrix.shape == (3 * schema.width, width)
            and prior.constant.shape == (width,)
            and prior.covariance.shape == (width, width)
            and prior.bends.shape == (schema.width,)
            and prior.gains.shape == (len(schema.columns),)
        )
    if not consistent:
        raise InputError("its metadata of rows does not agree with its rows")
    return RowMetadata(schema, tensors["metadata"].numpy(), lines, prior)


def row_observation_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the observations of rows observed since fit; none if there are no such rows."""
    rows = fitted.roster.observed_rows
    if not rows:
        return {}
    observations = [fitted.roster.observations(row) for row in rows]
    cells = RowCells.of([each for each in observations if each is not None])
    position = np.full(len(fitted.catalogue.slots_by_number(slice(None))), -1)
    position[[fitted.catalogue.number(name) for name in fitted.catalogue]] = np.arange(len(fitted.catalogue))
    features = position[cells.numbers]
    present = features >= 0  # observations of removed features are dropped
    lines = np.repeat(np.arange(len(rows)), cells.counts)[present]
    order = np.lexsort((features[present], lines))
    time_tensors = {}
    if cells.times is not None:
        now = [each.now for each in observations if each is not None and each.now is not None]
        time_tensors = {
            "row_observations/times": torch.from_numpy(cells.times[present][order]),
            "row_observations/now": torch.tensor(now, dtype=torch.float64),
        }
    return {
        **time_tensors,
        "row_observations/rows": torch.tensor(rows, dtype=torch.int64),
        "row_observations/counts": torch.from_numpy(np.bincount(lines, minlength=len(rows))),
        "row_observations/features": torch.from_numpy(features[present][order]),
        "row_observations/values": torch.from_numpy(cells.values[present][order]),
    }


def build_row_store(
    facts: ModelFacts, states: RowStates, observations: dict[str, Tensor] | None, catalogue: FeatureStore
) -> RowStore:
    """Build the rows of a saved model."""
    row_store = RowStore(Names(facts.rows, "row"), states)
    if observations is None:
        return row_store
    numbers = np.array([catalogue.number(name) for name in facts.features.names], dtype=np.int64)
    return row_store.with_observations(read_row_observations(observations, numbers))


def read_row_observations(
    observations: dict[str, Tensor], numbers: NDArray[np.int64]
) -> dict[int, RowObservations]:
    """Return the observations of rows observed since fit, by row; ``numbers`` are those of the features."""
    counts = observations["counts"].tolist()
    features = torch.split(observations["features"], counts)
    values = torch.split(observations["values"], counts)
    times = torch.split(observations["times"], counts) if "times" in observations else [None] * len(counts)
    now = observations["now"].tolist() if "now" in observations else [None] * len(counts)
    by_row = {}
    for row, row_features, row_values, row_times, row_now in zip(
        observations["rows"].tolist(), features, values, times, now, strict=True
    ):
        feature_numbers = numbers[row_features.numpy()]
        order = np.argsort(feature_numbers)
        by_row[row] = RowObservations(
            feature_numbers[order],
            row_values.numpy()[order],
            None if row_times is None else row_times.numpy()[order],
            row_now,
        )
    return by_row


def are_consistent(observations: dict[str, Tensor], rows: int, features: int) -> bool:
    """Return whether all rows and features exist, each row and each of its features occurs once, in order."""
    if len(observations["counts"]) != len(observations["rows"]) or bool((observations["counts"] < 0).any()):
        return False
    lines = torch.repeat_interleave(observations["rows"], observations["counts"])
    within = all(
        bool(((observations[name] >= 0) & (observations[name] < limit)).all())
        for name, limit in (("rows", rows), ("features", features))
    )
    if not within or not len(lines) == len(observations["features"]) == len(observations["values"]):
        return False
    if "times" in observations and (
        len(observations["times"]) != len(lines)
        or len(observations.get("now", ())) != len(observations["rows"])
    ):
        return False
    keys = lines * max(1, features) + observations["features"]
    return all(bool((numbers.diff() > 0).all()) for numbers in (observations["rows"], keys))
