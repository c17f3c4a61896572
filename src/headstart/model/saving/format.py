"""Convert a model to facts and tensors and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
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
from headstart.core.types import Heads, RowPrior, RowStates
from headstart.errors import InputError
from headstart.model.features import FeatureStore
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.rows import RowMetadata, RowStore
from headstart.model.state import NOTHING, Arrived, Clock, ModelState, Settings
from headstart.table import MetadataSchema, Names
from headstart.table.metadata import as_array, as_bytes, records_from
from headstart.training.judge import Judgement

Groups = dict[str, dict[str, Tensor]]


def time_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """The times of the table and of the features; none if observations do not age."""
    if fitted.clock is None:
        return {}
    features = list(fitted.catalogue.values())
    times = [np.zeros(0), *(feature.times for feature in features if feature.times is not None)]
    return {
        "times/table": torch.from_numpy(fitted.clock.table),
        "times/contexts": torch.from_numpy(np.concatenate(times)),
    }


def clock_from(facts: ModelFacts, parts: Groups) -> Clock | None:
    """The clock of a saved model; its times must be there if it has a half-life, and only then."""
    half_life, held = facts.settings.half_life, parts.get("times")
    if half_life is None and facts.times is None and held is None:
        return None
    if half_life is None or facts.times is None or held is None:
        raise InputError("it does not say all of how its observations age")
    sizes = {
        "table": len(parts["knowledge"]["values"]),
        "contexts": len(parts["contexts"]["values"]),
    }
    if any(len(held[name]) != size for name, size in sizes.items()):
        raise InputError("its times do not agree with its observations")
    observations = parts.get("row_observations")
    if observations is not None and "times" not in observations:
        raise InputError("it does not say when its rows observed")
    return Clock(half_life, facts.times[1], facts.times[0], held["table"].numpy())


def weights_of_table(clock: Clock | None) -> Tensor | None:
    """How much the observations of the table counted at fit, if they age: (n,)."""
    return None if clock is None else torch.from_numpy(clock.weights(clock.table)).float()


def feature_times(parts: Groups, counts: list[int]) -> list[NDArray[np.float64]] | list[None]:
    """Return the times of each feature's observations."""
    held = parts.get("times")
    if held is None:
        return [None] * len(counts)
    return [part.numpy() for part in torch.split(held["contexts"], counts)]


def feature_arrivals(
    parts: Groups, counts: list[int], observed_since: Sequence[bool]
) -> list[NDArray[np.int64] | None]:
    """Return the arrivals of each feature's observations; None of those as fitted."""
    held = [count for count, since in zip(counts, observed_since, strict=True) if since]
    lists = iter(torch.split(parts["contexts"]["arrivals"], held))
    return [next(lists).numpy() if since else None for since in observed_since]


def record_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """The metadata of all features, if it was kept; none if there is no metadata."""
    records = [feature.record for feature in fitted.catalogue.values()]
    if fitted.schema is None or any(record is None for record in records):
        return {}
    columns = [column.name for column in fitted.schema.columns]
    return {"records": as_bytes([record or {} for record in records], columns)}


def row_metadata_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """The metadata of rows and what it says of them, if there is any."""
    held = fitted.row_metadata
    if held is None:
        return {}
    columns = [column.name for column in held.schema.columns]
    tensors = {
        "rows/metadata": torch.from_numpy(held.encoded),
        "rows/records": as_bytes(held.lines.to_pylist(), columns),
    }
    prior = {} if held.prior is None else vars(held.prior)
    return tensors | {f"row_prior/{name}": part for name, part in prior.items()}


def row_metadata_from(
    facts: ModelFacts, parts: dict[str, dict[str, Tensor]], width: int, rows: int
) -> RowMetadata | None:
    """The metadata of the rows of a saved model, which has so many."""
    own, schema = parts.get("rows"), facts.row_metadata
    if own is None or schema is None:
        if own is not None or schema is not None or "row_prior" in parts:
            raise InputError("its metadata of rows is not complete")
        return None
    columns = [column.name for column in schema.columns]
    records = [record or {} for record in records_from(own["records"], rows)]
    lines = pa.table({name: as_array([record.get(name) for record in records]) for name in columns})
    prior = RowPrior(**parts["row_prior"]) if "row_prior" in parts else None
    fits = own["metadata"].shape == (rows, schema.width)
    if prior is not None:
        fits = fits and (
            prior.matrix.shape == (3 * schema.width, width)
            and prior.constant.shape == (width,)
            and prior.covariance.shape == (width, width)
            and prior.bends.shape == (schema.width,)
            and prior.gains.shape == (len(schema.columns),)
        )
    if not fits:
        raise InputError("its metadata of rows does not agree with its rows")
    return RowMetadata(schema, own["metadata"].numpy(), lines, prior)


def row_observation_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return observations, references and fitted states of rows that were added or observed since fit."""
    rows = fitted.roster.observed_rows
    if not rows:
        return {}
    every = [fitted.roster.observations(row) for row in rows]
    observations = [each for each in every if each is not None]
    cells = ObservationLists.of(observations)
    arrivals = np.concatenate([each.arrivals for each in observations if each.arrivals is not None])
    position = np.full(len(fitted.catalogue.slots_by_number(slice(None))), -1)
    position[[fitted.catalogue.number(name) for name in fitted.catalogue]] = np.arange(len(fitted.catalogue))
    features = position[cells.keys]
    kept = features >= 0  # of features that are no longer there nothing is left
    lines = cells.lines[kept]
    order = np.lexsort((features[kept], lines))
    tensors = {
        "row_observations/rows": torch.tensor(rows, dtype=torch.int64),
        "row_observations/counts": torch.from_numpy(np.bincount(lines, minlength=len(rows))),
        "row_observations/features": torch.from_numpy(features[kept][order]),
        "row_observations/values": torch.from_numpy(cells.values[kept][order]),
        "row_observations/arrivals": torch.from_numpy(arrivals[kept][order]),
    }
    if cells.times is not None:
        tensors["row_observations/times"] = torch.from_numpy(cells.times[kept][order])
    saved = fitted.roster.saved(np.array(rows, dtype=np.int64))
    for prefix, states in zip(("row_references", "row_fitted_states"), saved, strict=True):
        parts = vars(states).items()
        tensors |= {f"{prefix}/{name}": value for name, value in parts if value is not None}
    return tensors


def feature_reference_tensors(fitted: ModelState) -> dict[str, Tensor]:
    """Return the references of features that are neither the backbone's heads nor their current ones."""
    found = [fitted.catalogue.reference(name) for name in fitted.catalogue]
    current = fitted.catalogue.slots(fitted.catalogue)
    positions = [
        place
        for place, (reference, slot) in enumerate(zip(found, current, strict=True))
        if reference is not None and reference[0] != slot
    ]
    chosen = [each for each in (found[place] for place in positions) if each is not None]
    if not chosen:
        return {}
    heads = fitted.catalogue.stored(torch.tensor([slot for slot, _ in chosen]))
    tensors = {f"feature_references/{name}": part for name, part in vars(heads).items() if part is not None}
    kinds = [(kind.first, kind.second) for _, kind in chosen]
    return tensors | {
        "feature_references/features": torch.tensor(positions, dtype=torch.int64),
        "feature_references/kinds": torch.tensor(kinds, dtype=torch.float64),
    }


def with_references(catalogue: FeatureStore, names: Sequence[str], groups: Groups) -> FeatureStore:
    """Return the features of a saved model with their references."""
    held = groups.get("feature_references")
    if held is None:
        return catalogue
    features = [catalogue[names[place]] for place in held["features"].tolist()]
    kinds = held["kinds"].tolist()
    features = [
        replace(feature, kind=replace(feature.kind, first=first, second=second))
        for feature, (first, second) in zip(features, kinds, strict=True)
    ]
    heads = Heads(**{name: part for name, part in held.items() if name not in ("features", "kinds")})
    return catalogue.put_references(features, heads)


def roster_from(facts: ModelFacts, states: RowStates, groups: Groups, catalogue: FeatureStore) -> RowStore:
    """Return the rows of a saved model."""
    roster = RowStore(Names(facts.rows, "row"), states)
    if "row_observations" not in groups:
        return roster
    numbers = np.array([catalogue.number(name) for name in facts.features.names], dtype=np.int64)
    return with_observed_rows(roster, groups, numbers)


def with_observed_rows(roster: RowStore, groups: Groups, numbers: NDArray[np.int64]) -> RowStore:
    """Return rows with their observations since fit, given the numbers of the features, and references."""
    observations = groups["row_observations"]
    counts, arrivals = observations["counts"].tolist(), observations["arrivals"]
    features, values = observations["features"], observations["values"]
    times = torch.split(observations["times"], counts) if "times" in observations else [None] * len(counts)
    lists = {}
    parts = (torch.split(part, counts) for part in (features, values, arrivals))
    for row, own, given, order, when in zip(observations["rows"].tolist(), *parts, times, strict=True):
        keys = numbers[own.numpy()]
        by_key = np.argsort(keys)
        lists[row] = ObservationList(
            keys[by_key],
            given.numpy()[by_key],
            order.numpy()[by_key],
            None if when is None else when.numpy()[by_key],
        )
    references, fitted = (RowStates(**groups[name]) for name in ("row_references", "row_fitted_states"))
    return roster.with_saved(observations["rows"].numpy(), references, fitted, lists)


def are_consistent(observations: dict[str, Tensor], rows: int, features: int) -> bool:
    """Whether rows observed known features, each row and each of its features once, in order."""
    if len(observations["counts"]) != len(observations["rows"]) or bool((observations["counts"] < 0).any()):
        return False
    lines = torch.repeat_interleave(observations["rows"], observations["counts"])
    within = all(
        bool(((observations[name] >= 0) & (observations[name] < limit)).all())
        for name, limit in (("rows", rows), ("features", features))
    )
    if not within or not len(lines) == len(observations["features"]) == len(observations["values"]):
        return False
    if any(len(observations.get(name, lines)) != len(lines) for name in ("arrivals", "times")):
        return False
    keys = lines * max(1, features) + observations["features"]
    return all(bool((numbers.diff() > 0).all()) for numbers in (observations["rows"], keys))


FORMAT = 3  # 2 did not hold all that defines a model; 1 had no heads with a covariance

Name = Annotated[str, Field(min_length=1)]


class FeatureFacts(Config):
    """The features of a model, one entry per feature in each list."""

    names: tuple[Name, ...]
    kinds: tuple[str, ...]
    in_backbone: tuple[bool, ...]
    shots: tuple[Annotated[int, Field(ge=0)], ...]
    finds_scale: tuple[bool, ...]
    observed_since: tuple[bool, ...]  # whether arrivals of its observations are known


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
    rows: tuple[Name, ...]
    row_metadata: MetadataSchema | None = None
    arrived: Arrived = NOTHING  # how well was foreseen what was observed since fit
    # The newest time there was at fit and the newest now, of a model whose observations age.
    times: tuple[FiniteFloat, FiniteFloat] | None = None
    arrivals: Annotated[int, Field(ge=0)] = 0  # of observations since fit


def checksum(facts: dict[str, Any]) -> str:
    """A digest of facts as read from JSON, whatever their order and layout."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def facts_of(fitted: ModelState, weights: str, digest: str) -> ModelFacts:
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
            observed_since=[feature.arrivals is not None for feature in features],
        ),
        backbone_features=list(fitted.backbone_features),
        judgement=fitted.judgement,
        middle=None if fitted.middle is None else str(fitted.middle),
        rows=list(fitted.rows),
        row_metadata=None if fitted.row_metadata is None else fitted.row_metadata.schema,
        arrived=fitted.arrived,
        times=None if fitted.clock is None else (fitted.clock.fitted_at, fitted.clock.now),
        arrivals=fitted.arrivals,
    )


def _packages(settings: Settings) -> dict[str, str]:
    """The installed packages that the parts come from."""
    packages = {
        "backbone": BACKBONES.origin(settings.backbone),
        "adapter": ADAPTERS.origin(settings.chosen_adapter),
    }
    base = getattr(settings.chosen_adapter, "base", None)
    return packages if base is None else {**packages, "base": ADAPTERS.origin(base)}


def tensors_of(fitted: ModelState) -> dict[str, Tensor]:
    """The tensors of a model, by name."""
    features, heads = fitted.catalogue.take(list(fitted.catalogue))
    knowledge = fitted.knowledge
    width = knowledge.metadata.shape[1]
    tensors = {
        "features/metadata": _stacked([feature.metadata for feature in features], width),
        "contexts/counts": torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64),
        "contexts/rows": _joined([feature.rows for feature in features], np.int64),
        "contexts/values": _joined([feature.values for feature in features], np.float64),
        "contexts/arrivals": _joined(
            [feature.arrivals for feature in features if feature.arrivals is not None], np.int64
        ),
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
    tensors |= feature_reference_tensors(fitted)
    tensors |= row_observation_tensors(fitted) | record_tensors(fitted) | row_metadata_tensors(fitted)
    tensors |= time_tensors(fitted)
    tensors |= {f"backbone/{name}": value for name, value in fitted.backbone.state_dict().items()}
    tensors |= {f"adapter/{name}": value for name, value in fitted.adapter.state_dict().items()}
    return tensors


def _stacked(lines: list[NDArray[np.float32]], width: int) -> Tensor:
    return torch.from_numpy(np.stack(lines) if lines else np.zeros((0, width), dtype=np.float32))


def _joined(parts: list[NDArray[Any]], kind: type) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, dtype=kind)]))
