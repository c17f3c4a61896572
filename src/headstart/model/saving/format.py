"""The format of saved models: facts, which are written as JSON, and named tensors.

``model_facts`` and ``model_tensors`` convert a model for ``folder``; the functions ``read_...`` convert parts
back for ``assembly`` and ``lazy``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat
from torch import Tensor

from headstart.adapters.base import ADAPTERS
from headstart.backbones.base import BACKBONES
from headstart.config import Config
from headstart.core.neighbours import LocalStrengths
from headstart.core.types import Heads, RowPriorRegression, RowStates
from headstart.distributed import process_group
from headstart.errors import InputError
from headstart.linalg.compact import MOST_DECODED, CompactMatrices, StoredMatrices, from_halves, to_halves
from headstart.linalg.row_sharded import global_count, global_sum
from headstart.model.features import FeatureStore
from headstart.model.observations import ObservationList, ObservationLists
from headstart.model.rows import RowMetadata, RowStore
from headstart.model.staleness import NO_ERRORS, ErrorSums
from headstart.model.state import Clock, ModelState, Settings
from headstart.table import MetadataSchema, Names
from headstart.table.cells import index_dtype
from headstart.table.metadata import as_array, as_bytes, records_from
from headstart.table.not_applicable import NO_CELLS, NotApplicable
from headstart.table.times import LEAST_WEIGHT, MOST_WEIGHT
from headstart.table.words import Words
from headstart.training.judge import Judgement

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Groups = dict[str, dict[str, Tensor]]  # tensors by name, by part of the model

FORMAT = 1

Name = Annotated[str, Field(min_length=1)]


class FeatureFacts(Config):
    """The features of a model, one entry per feature in each list."""

    names: tuple[Name, ...]
    kinds: tuple[str, ...]
    in_backbone: tuple[bool, ...]
    shots: tuple[Annotated[int, Field(ge=0)], ...]
    finds_scale: tuple[bool, ...]
    observed_since: tuple[bool, ...]  # whether the arrivals of its observations are stored


class ModelFacts(Config):
    """The content of ``model.json`` except its checksum."""

    format: Literal[1] = 1
    weights: str = Field(pattern=r"^weights-[0-9a-f]{16}\.safetensors$")  # a file inside the folder
    weights_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    packages: dict[Literal["backbone", "adapter", "base"], str]  # the packages that install these parts
    settings: Settings
    kinds: tuple[str, ...]
    metadata: MetadataSchema | None
    features: FeatureFacts
    backbone_features: tuple[Name, ...]
    judgement: Judgement | None  # the comparison by which the adapter was chosen
    local: LocalStrengths | None = None  # of local parts; None: without them
    middle: str | None  # the usual kind of real features, for new ones with an unknown scale
    rows: tuple[Name, ...]
    row_metadata: MetadataSchema | None = None
    arrived: ErrorSums = NO_ERRORS  # prediction errors of observations since fit
    # The newest time at fit and the newest time of all; None if observations do not age.
    times: tuple[FiniteFloat, FiniteFloat] | None = None
    arrivals: Annotated[int, Field(ge=0)] = 0  # the arrival of the next observation
    # The tensors that are not stored, by name, each with the name of an equal one.
    copies: dict[str, str] = Field(default_factory=dict)
    words: Words = Words()  # what rows, features and values are called


def checksum(facts: dict[str, Any]) -> str:
    """Return a digest of facts as read from JSON, which does not depend on their order or layout."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def model_facts(model: ModelState, weights: str, digest: str, copies: Mapping[str, str]) -> ModelFacts:
    """Return the facts of a model whose file of weights has the name ``weights`` and this ``digest``.

    ``copies`` are the tensors that are left out of this file (``find_copies``).
    """
    features, settings = list(model.feature_store.values()), model.settings
    return ModelFacts(
        weights=weights,
        weights_sha256=digest,
        packages=_packages(settings),
        settings=settings,
        kinds=[str(kind) for kind in model.kinds],
        metadata=model.schema,
        features=FeatureFacts(
            names=[feature.name for feature in features],
            kinds=[str(feature.kind) for feature in features],
            in_backbone=[feature.in_backbone for feature in features],
            shots=[feature.shots for feature in features],
            finds_scale=[feature.finds_scale for feature in features],
            observed_since=[feature.arrivals is not None for feature in features],
        ),
        backbone_features=list(model.backbone_features),
        judgement=model.judgement,
        local=model.local,
        middle=None if model.middle is None else str(model.middle),
        rows=list(model.rows),
        row_metadata=None if model.row_metadata is None else model.row_metadata.schema,
        arrived=model.arrived,
        times=None if model.clock is None else (model.clock.fitted_at, model.clock.now),
        arrivals=model.arrivals,
        copies=dict(copies),
        words=model.words,
    )


def _packages(settings: Settings) -> dict[str, str]:
    """Return the names of the packages that install the backbone, the adapter and its base."""
    adapter = settings.chosen_adapter
    packages = {"backbone": BACKBONES.origin(settings.backbone), "adapter": ADAPTERS.origin(adapter)}
    return packages if adapter.inner is None else {**packages, "base": ADAPTERS.origin(adapter.inner)}


def model_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the tensors of a model, by name."""
    features, heads = model.feature_store.take(list(model.feature_store))
    knowledge = model.knowledge
    width = knowledge.metadata.shape[1]
    tensors = {
        "features/metadata": _stack([feature.metadata for feature in features], width),
        "contexts/counts": torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64),
        "contexts/rows": _concatenate([feature.rows for feature in features], np.int64).to(
            index_dtype(global_count(len(model.rows)))
        ),
        **_context_values(_concatenate([feature.values for feature in features], np.float64)),
        "contexts/arrivals": _concatenate(
            [feature.arrivals for feature in features if feature.arrivals is not None], np.int64
        ),
        "knowledge/metadata": knowledge.metadata,
        "knowledge/indptr": knowledge.cells.indptr,
        "knowledge/index": knowledge.cells.index.int(),
        **_knowledge_values(knowledge.cells.values),
        "knowledge/kinds": knowledge.kinds,
        "backbone_grid": model.backbone.grid,
    }
    if isinstance(heads.covariance, StoredMatrices):
        matrices = vars(heads.covariance.gather())
        tensors |= {f"covariances/{field.name}": matrices[field.name] for field in fields(CompactMatrices)}
        heads = replace(heads, covariance=None)
    parts: dict[str, Any] = {
        "calibration": model.calibration,
        "features": heads,
        "knowledge/heads": knowledge.heads,
        "knowledge/states": knowledge.states,
        "states": model.states.at(None),
    }
    if knowledge.scales is not None:
        parts["knowledge/scales"] = knowledge.scales
    for prefix, part in parts.items():
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        tensors |= {f"{prefix}/{name}": value for name, value in values.items() if value is not None}
    tensors |= feature_reference_tensors(model)
    tensors |= row_observation_tensors(model) | record_tensors(model) | row_metadata_tensors(model)
    tensors |= time_tensors(model) | weight_tensors(model) | not_applicable_tensors(model)
    if model.table_values is not None:
        tensors["observation_values/table"] = torch.from_numpy(model.table_values)
    if model.known_weights is not None:
        names = {"indptr": np.int64, "indices": np.int32, "data": np.float32}
        tensors |= {
            f"known_weights/{name}": torch.from_numpy(getattr(model.known_weights, name).astype(dtype))
            for name, dtype in names.items()
        }
    tensors |= {f"backbone/{name}": value for name, value in model.backbone.state_dict().items()}
    tensors |= {f"adapter/{name}": value for name, value in model.adapter.state_dict().items()}
    return tensors


def _stack(vectors: list[NDArray[np.float32]], width: int) -> Tensor:
    return torch.from_numpy(np.stack(vectors) if vectors else np.zeros((0, width), dtype=np.float32))


def _concatenate(parts: list[NDArray[Any]], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([*parts, np.zeros(0, dtype=dtype)]))


def _narrow(values: Tensor) -> Tensor:
    """Return numbers in single precision if this holds all of them exactly, in every process."""
    single = values.float()
    inexact = torch.tensor(not torch.equal(single.double(), values), dtype=torch.int64)
    return values if int(global_sum(inexact)) else single


_LEAST_CODED = 2**16  # values that are coded

_SAMPLED = 2**16  # values in which all levels must occur

_MOST_LEVELS = 256  # different values with codes of one byte


def _context_values(values: Tensor) -> dict[str, Tensor]:
    """Return the tensors of the values of contexts (n,)."""
    coded = _encode_levels("contexts", values)
    return {"contexts/values": _narrow(values)} if coded is None else coded


def _knowledge_values(values: Tensor) -> dict[str, Tensor]:
    """Return the tensors of the values of the knowledge's cells (n,)."""
    coded = _encode_levels("knowledge", values) if len(values) <= MOST_DECODED else None
    return {"knowledge/values": values} if coded is None else coded


def _encode_levels(group: str, values: Tensor) -> dict[str, Tensor] | None:
    """Return values (n,) as positions in a list of all levels; None unless there are few levels."""
    if len(values) >= max(1, _LEAST_CODED) and process_group().is_single:
        levels = torch.unique(values[:_SAMPLED])
        codes = torch.searchsorted(levels, values).clamp(max=len(levels) - 1)
        if len(levels) <= _MOST_LEVELS and torch.equal(levels[codes], values):
            return {f"{group}/values": codes.to(torch.uint8), f"{group}/levels": levels}
    return None


def _decode(tensors: Mapping[str, Tensor], part: slice = slice(None)) -> NDArray[Any]:
    """Return some values of a group from the tensors that store them: (n,)."""
    values = tensors["values"].numpy()[part]
    return tensors["levels"].numpy()[values] if "levels" in tensors else values


def context_values(contexts: Mapping[str, Tensor], part: slice = slice(None)) -> NDArray[np.float64]:
    """Return some values of contexts from the tensors that store them: (n,)."""
    return _decode(contexts, part).astype(np.float64, copy=False)


def knowledge_values(knowledge: Mapping[str, Tensor]) -> Tensor:
    """Return the values of the knowledge's cells from the tensors that store them: (n,)."""
    return torch.from_numpy(_decode(knowledge)) if "levels" in knowledge else knowledge["values"]


_PARTS = ("backbone/", "adapter/")  # whose tensors may be stored in half precision

_LEAST_NARROWED = 2**14  # numbers of a matrix that is worth it

_UNITS = "units/"  # before the name of a tensor that is stored in half precision


def narrow_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with matrices of the parts in half precision, if this holds them exactly.

    The lines of such a matrix are divided by powers of 2, a further tensor.
    """
    narrowed = dict(tensors)
    for name, tensor in tensors.items():
        if not name.startswith(_PARTS) or tensor.dtype != torch.float32 or tensor.ndim != 2:
            continue
        if _LEAST_NARROWED <= tensor.numel() <= MOST_DECODED:
            halves, units = to_halves(tensor)
            if torch.equal(from_halves(halves, units), tensor):
                narrowed |= {name: halves, _UNITS + name: units}
    return narrowed


def widen_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in single precision in place of those of ``narrow_tensors``."""
    widened = {name: tensor for name, tensor in tensors.items() if not name.startswith(_UNITS)}
    for name in tensors.keys() - widened.keys():
        matrix, units = widened.get(name.removeprefix(_UNITS)), tensors[name]
        if matrix is None or matrix.dtype != torch.float16 or units.dtype != torch.float32:
            raise InputError(f"its tensor {name!r} has no matrix")
        if matrix.ndim != 2 or units.shape != matrix.shape[:1]:
            raise InputError(f"its tensor {name!r} does not agree with its matrix")
        widened[name.removeprefix(_UNITS)] = from_halves(matrix, units)
    return widened


_LEAST_BYTES = 2**16  # of a tensor that is compared with others

_NEVER_COPIES = ("features/", "covariances/", "states/")  # these tensors are mapped with room after them


def find_copies(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the tensors that equal another one bit for bit, by name, each with the name of the other.

    A matrix can also equal the first columns of another one, named as in ``states/activation[:, :32]``.
    """
    alike: dict[Any, list[str]] = {}
    order = {name: (not name.startswith(_NEVER_COPIES), -tensors[name].numel(), name) for name in tensors}
    for name in sorted(tensors, key=order.__getitem__):
        tensor = tensors[name]
        if tensor.numel() * tensor.element_size() >= _LEAST_BYTES:
            shape = tuple(tensor.shape)
            alike.setdefault((tensor.dtype, shape[:1] if len(shape) == 2 else shape), []).append(name)
    copies: dict[str, str] = {}
    for names in alike.values():
        for position, name in enumerate(names):
            originals = (other for other in names[:position] if other not in copies)
            equal = (other for other in originals if _starts_with(tensors[other], tensors[name]))
            original = None if name.startswith(_NEVER_COPIES) else next(equal, None)
            if original is not None:
                whole = tensors[original].shape == tensors[name].shape
                copies[name] = original if whole else f"{original}[:, :{tensors[name].shape[1]}]"
    # Rows can be divided among processes: all of them must have the same copies.
    by_process = process_group().all_gather_texts([*map(" ".join, copies.items())])
    agreed = set.intersection(*map(set, by_process))
    return {name: original for name, original in copies.items() if f"{name} {original}" in agreed}


def _starts_with(one: Tensor, other: Tensor) -> bool:
    """Return whether a tensor, or its first columns, equal another one bit for bit."""
    if one.ndim == other.ndim == 2:
        one = one[:, : other.shape[1]]
    if one.shape != other.shape:
        return False
    if one.ndim and not torch.equal(one[:1], other[:1]):  # most differ in the first line
        return False
    one, other = (part.detach().reshape(-1).view(torch.uint8) for part in (one, other))
    return torch.equal(one, other)


_COPY = re.compile(r"(?P<name>.+?)(?:\[:, :(?P<columns>[0-9]{1,9})\])?")


def with_copies(tensors: dict[str, Tensor], copies: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors together with ``copies``, which share the memory of their originals."""
    restored = {}
    for copy, text in copies.items():
        match = _COPY.fullmatch(text)
        original = None if match is None else tensors.get(match["name"])
        if match is None or original is None or copy in tensors:
            raise InputError("its copies of tensors do not agree with the weights")
        columns = match["columns"]
        restored[copy] = original if columns is None or original.ndim != 2 else original[:, : int(columns)]
    return tensors | restored


def time_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the times of the observations of the table and of features; empty if they do not age."""
    if model.clock is None:
        return {}
    features = list(model.feature_store.values())
    times = [np.zeros(0), *(feature.times for feature in features if feature.times is not None)]
    return {
        "times/table": torch.from_numpy(model.clock.table),
        "times/contexts": torch.from_numpy(np.concatenate(times)),
    }


def read_clock(facts: ModelFacts, groups: Groups) -> Clock | None:
    """Return the clock of a saved model; refuse a model with a half-life but without times, or vice versa."""
    half_life, times = facts.settings.half_life, groups.get("times")
    if half_life is None and facts.times is None and times is None:
        return None
    if half_life is None or facts.times is None or times is None:
        raise InputError("it does not say all of how its observations age")
    sizes = {
        "table": len(groups["knowledge"]["values"]),
        "contexts": len(groups["contexts"]["values"]),
    }
    if any(len(times[name]) != size for name, size in sizes.items()):
        raise InputError("its times do not agree with its observations")
    observations = groups.get("row_observations")
    if observations is not None and "times" not in observations:
        raise InputError("it does not say when its rows observed")
    return Clock(half_life, facts.times[1], facts.times[0], times["table"].numpy())


def weight_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the given weights of the observations of the table and of features; empty if all are 1."""
    lists = ObservationLists.of([feature.observations for feature in model.feature_store.values()])
    if model.table_weights is None and lists.weights is None:
        return {}
    table = np.ones(len(model.knowledge.cells.values)) if (w := model.table_weights) is None else w
    contexts = np.ones(len(lists.values)) if lists.weights is None else lists.weights
    return {
        "observation_weights/table": torch.from_numpy(table),
        "observation_weights/contexts": torch.from_numpy(contexts),
    }


def not_applicable_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the positions (n, 2) of the cells that are not applicable among rows and features, if any."""
    if not len(model.not_applicable):
        return {}
    features = Names(model.feature_store.feature_names, "feature")
    return {"not_applicable/cells": torch.from_numpy(model.not_applicable.index(model.rows, features))}


def read_not_applicable(groups: Groups, rows: Names, features: Sequence[str]) -> NotApplicable:
    """Return the cells that are not applicable."""
    if "not_applicable" not in groups:
        return NO_CELLS
    cells = groups["not_applicable"]["cells"].numpy()
    inside = (cells >= 0) & (cells < [len(rows), len(features)])
    if not inside.all():
        raise InputError("its cells that are not applicable do not agree with its rows and features")
    return NotApplicable((rows[row], features[feature]) for row, feature in cells.tolist())


def read_table_weights(groups: Groups) -> NDArray[np.float64] | None:
    """Return the given weights of the table's observations: (n,); None: all 1. Refuse impossible weights."""
    weights = groups.get("observation_weights")
    lists = {"table": groups["knowledge"]["values"], "contexts": groups["contexts"]["values"]}
    row_weights = groups.get("row_observations", {}).get("weights")
    parts = [*(weights or {}).values(), *([] if row_weights is None else [row_weights])]
    if any(not bool(((part >= LEAST_WEIGHT) & (part <= MOST_WEIGHT)).all()) for part in parts):
        raise InputError("some weights of its observations are not positive numbers")
    if weights is None:
        return None
    if any(len(weights[name]) != len(values) for name, values in lists.items()):
        raise InputError("its weights do not agree with its observations")
    table = weights["table"].numpy()
    return None if (table == 1).all() else table


def read_table_values(groups: Groups) -> NDArray[np.float64] | None:
    """Return the given numbers of the table's observations: (n,); None: those of the knowledge's cells."""
    values = groups.get("observation_values")
    if values is None:
        return None
    if len(values["table"]) != len(groups["knowledge"]["values"]):
        raise InputError("its given values do not agree with its observations")
    return values["table"].numpy()


def read_known_weights(groups: Groups) -> csr_array | None:
    """Return the weights of known features' local parts: (features, features); None: they have none."""
    weights = groups.get("known_weights")
    if weights is None:
        return None
    from scipy.sparse import csr_array  # imported here: few saved models need it

    count = len(groups["knowledge"]["kinds"])
    parts = weights["data"].double(), weights["indices"], weights["indptr"]
    return csr_array(tuple(part.numpy() for part in parts), shape=(count, count))


def table_weights(clock: Clock | None, given: NDArray[np.float64] | None) -> Tensor | None:
    """Return the weights of the table's observations at fit: (n,); None: all 1."""
    weights = given if clock is None else clock.weights(clock.table, given)
    return None if weights is None else torch.from_numpy(weights).float()


def read_by_feature(groups: Groups, group: str, counts: list[int]) -> list[NDArray[np.float64]] | list[None]:
    """Return the times or weights of each feature's observations, as the ``group`` says."""
    tensors = groups.get(group)
    if tensors is None:
        return [None] * len(counts)
    return split_array(tensors["contexts"].numpy(), counts)


def split_array(array: NDArray[Any], counts: Sequence[int]) -> list[NDArray[Any]]:
    """Split an array (n,) into views of ``counts`` numbers each."""
    ends = np.cumsum([0, *counts]).tolist()
    return [array[start:end] for start, end in pairwise(ends)]


def read_feature_arrivals(
    groups: Groups, counts: list[int], observed_since: Sequence[bool]
) -> list[NDArray[np.int64] | None]:
    """Return the arrivals of each feature's observations; None for features not observed since fit."""
    sizes = [count for count, since in zip(counts, observed_since, strict=True) if since]
    lists = iter(split_array(groups["contexts"]["arrivals"].numpy(), sizes))
    return [next(lists) if since else None for since in observed_since]


def record_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the metadata of all features as the user passed it; empty if the model has no metadata."""
    if model.schema is None:
        return {}
    records = [feature.record or {} for feature in model.feature_store.values()]
    return {"records": as_bytes(records, [column.name for column in model.schema.columns])}


def row_metadata_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the metadata of rows and the prior of rows given it; empty if there is no row metadata."""
    metadata = model.row_metadata
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
    prior = RowPriorRegression(**groups["row_prior"]) if "row_prior" in groups else None
    consistent = tensors["metadata"].shape == (rows, schema.width)
    if prior is not None:
        consistent = consistent and (
            prior.matrix.shape == (3 * schema.width, width)
            and prior.constant.shape == (width,)
            and prior.covariance.shape == (width, width)
            and prior.nonlinear.shape == (schema.width,)
            and prior.gains.shape == (len(schema.columns),)
        )
    if not consistent:
        raise InputError("its metadata of rows does not agree with its rows")
    return RowMetadata(schema, tensors["metadata"].numpy(), lines, prior)


def row_observation_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the observations, references and states of the fit of rows added or observed since fit."""
    rows = model.row_store.observed_rows
    if not rows:
        return {}
    lists = [
        observations
        for observations in (model.row_store.observations(row) for row in rows)
        if observations is not None
    ]
    cells = ObservationLists.of(lists)
    arrivals = np.concatenate([line.arrivals for line in lists if line.arrivals is not None])
    position = np.full(len(model.feature_store.slots_by_number(slice(None))), -1)
    position[[model.feature_store.number(name) for name in model.feature_store]] = np.arange(
        len(model.feature_store)
    )
    features = position[cells.keys]
    present = features >= 0  # the others were removed
    lines = cells.lines[present]
    order = np.lexsort((features[present], lines))
    tensors = {
        "row_observations/rows": torch.tensor(rows, dtype=torch.int64),
        "row_observations/counts": torch.from_numpy(np.bincount(lines, minlength=len(rows))),
        "row_observations/features": torch.from_numpy(features[present][order]),
        "row_observations/values": torch.from_numpy(cells.values[present][order]),
        "row_observations/arrivals": torch.from_numpy(arrivals[present][order]),
    }
    if cells.times is not None:
        tensors["row_observations/times"] = torch.from_numpy(cells.times[present][order])
    if cells.weights is not None:
        tensors["row_observations/weights"] = torch.from_numpy(cells.weights[present][order])
    positions = np.array(rows, dtype=np.int64)
    for prefix, states in (
        ("row_references", model.row_store.take(positions, "reference")),
        ("row_fitted_states", model.row_store.take(positions, "fit")),
    ):
        parts = {field.name: getattr(states, field.name) for field in fields(states)}
        tensors |= {f"{prefix}/{name}": part for name, part in parts.items() if part is not None}
    return tensors


def feature_reference_tensors(model: ModelState) -> dict[str, Tensor]:
    """Return the references of features that are neither heads of the backbone nor current heads."""
    references = [model.feature_store.reference(name) for name in model.feature_store]
    current_slots = model.feature_store.slots(model.feature_store)
    stored = {
        position: reference
        for position, (reference, slot) in enumerate(zip(references, current_slots, strict=True))
        if reference is not None and reference[0] != slot
    }
    if not stored:
        return {}
    heads = model.feature_store.heads_at(torch.tensor([slot for slot, _ in stored.values()])).dense()
    tensors = {f"feature_references/{name}": part for name, part in vars(heads).items() if part is not None}
    kinds = [(kind.first, kind.second) for _, kind in stored.values()]
    return tensors | {
        "feature_references/features": torch.tensor(list(stored), dtype=torch.int64),
        "feature_references/kinds": torch.tensor(kinds, dtype=torch.float64),
    }


def read_heads(tensors: dict[str, Tensor], covariances: dict[str, Tensor] | None) -> Heads:
    """Return the heads with these ``tensors`` and, if given, the parts of compact ``covariances``."""
    if covariances is None:
        return Heads(**tensors)
    return Heads(**tensors, covariance=cast(Tensor, StoredMatrices(CompactMatrices(**covariances))))


def with_references(feature_store: FeatureStore, names: Sequence[str], groups: Groups) -> FeatureStore:
    """Return the features of a saved model with their references."""
    references = groups.get("feature_references")
    if references is None:
        return feature_store
    features = [feature_store[names[position]] for position in references["features"].tolist()]
    kinds = references["kinds"].tolist()
    features = [
        replace(feature, kind=replace(feature.kind, first=first, second=second))
        for feature, (first, second) in zip(features, kinds, strict=True)
    ]
    heads = Heads(**{name: part for name, part in references.items() if name not in ("features", "kinds")})
    return feature_store.put_references(features, heads)


def build_row_store(
    facts: ModelFacts, states: RowStates, groups: Groups, feature_store: FeatureStore
) -> RowStore:
    """Build the rows of a saved model."""
    row_store = RowStore(Names(facts.rows, "row"), states)
    if "row_observations" not in groups:
        return row_store
    numbers = np.array([feature_store.number(name) for name in facts.features.names], dtype=np.int64)
    return with_observed_rows(row_store, groups, numbers)


def with_observed_rows(row_store: RowStore, groups: Groups, numbers: NDArray[np.int64]) -> RowStore:
    """Return the rows with their observations and references since fit.

    ``numbers`` (features,) are the numbers of the features in the order of the saved model.
    """
    observations = groups["row_observations"]
    counts, arrivals = observations["counts"].tolist(), observations["arrivals"]
    features, values = observations["features"], observations["values"]
    times, weights = (
        torch.split(observations[name], counts) if name in observations else [None] * len(counts)
        for name in ("times", "weights")
    )
    lists = {}
    parts = (torch.split(part, counts) for part in (features, values, arrivals))
    rows = observations["rows"].tolist()
    for row, positions, row_values, row_arrivals, row_times, row_weights in zip(
        rows, *parts, times, weights, strict=True
    ):
        keys = numbers[positions.numpy()]
        order = np.argsort(keys)
        lists[row] = ObservationList(
            keys[order],
            row_values.numpy()[order],
            row_arrivals.numpy()[order],
            None if row_times is None else row_times.numpy()[order],
            None if row_weights is None else row_weights.numpy()[order],
        )
    references, fitted = (RowStates(**groups[name]) for name in ("row_references", "row_fitted_states"))
    return row_store.with_saved(observations["rows"].numpy(), references, fitted, lists)
