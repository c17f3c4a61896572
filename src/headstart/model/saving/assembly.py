"""Put a model together from its facts and tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.adapters.base import Adapter, new_adapter
from headstart.backbones.base import BACKBONES, Backbone
from headstart.core.types import Heads, Knowledge, RowStates, Scales
from headstart.model.features import Feature, FeatureStore
from headstart.model.rows import RowMetadata, RowStore
from headstart.model.saving.format import (
    ModelFacts,
    clock_from,
    feature_arrivals,
    feature_times,
    roster_from,
    row_metadata_from,
    weights_of_table,
    with_references,
)
from headstart.model.saving.validation import Groups, check_counts, check_tensors, made
from headstart.model.state import Clock, ModelState
from headstart.table import Cells, Kind, Names
from headstart.table.cells import index_dtype
from headstart.table.metadata import records_from
from headstart.training.calibration import Calibration


@dataclass(frozen=True)
class Holdings:
    """The features and rows of a saved model."""

    catalogue: FeatureStore
    roster: RowStore
    backbone_features: Names
    row_metadata: RowMetadata | None


def fitted_from(facts: ModelFacts, tensors: dict[str, Tensor], *, prepare: bool = False) -> ModelState:
    """Put a model together, and check that it makes sense as a whole.

    ``prepare`` lets the adapter compute what formats before 3 did not hold.
    """
    groups = grouped(tensors)
    check_tensors(groups)
    clock = clock_from(facts, groups)
    backbone, knowledge = trained_from(facts, groups, len(facts.backbone_features), clock)
    states = RowStates(**groups["states"])
    check_counts(facts, knowledge, states, groups)
    adapter = adapter_from(facts, groups, knowledge, prepare=prepare)
    catalogue = with_references(_catalogue(facts, groups, tensors), facts.features.names, groups)
    holdings = Holdings(
        catalogue,
        roster_from(facts, states, groups, catalogue),
        Names(facts.backbone_features, "feature"),
        row_metadata_from(facts, groups, backbone.activation_size, len(facts.rows)),
    )
    return whole(facts, groups, backbone, knowledge, adapter, clock, holdings)


def grouped(tensors: dict[str, Tensor]) -> Groups:
    """Tensors by the part of the model that they belong to."""
    groups: Groups = {}
    for name, value in tensors.items():
        group, _, rest = name.rpartition("/") if name.startswith("knowledge/") else name.partition("/")
        groups.setdefault(group, {})[rest] = value
    return groups


def trained_from(
    facts: ModelFacts, groups: Groups, features: int, clock: Clock | None
) -> tuple[Backbone, Knowledge]:
    """The backbone, which reads so many features, and what it was trained on."""
    settings, own = facts.settings, groups["knowledge"]
    backbone = made(
        lambda: BACKBONES.part_of(settings.backbone)(
            settings.backbone, own["kinds"], groups["backbone_grid"][""]
        ),
        groups["backbone"],
        _size(groups),
    )
    backbone.load_state_dict(groups["backbone"], assign=True)  # without a copy
    backbone.eval().requires_grad_(False)
    index = own["index"].to(index_dtype(features))  # in 4 bytes already, unless the model is old
    knowledge = Knowledge(
        RowStates(**groups["knowledge/states"]),
        Cells(own["indptr"], index, own["values"], features, weights_of_table(clock)),
        Heads(**groups["knowledge/heads"]),
        own["metadata"],
        own["kinds"],
        backbone.likelihood,
        tuple(column.width for column in facts.metadata.columns) if facts.metadata else (),
        Scales(**groups["knowledge/scales"]) if "knowledge/scales" in groups else None,
    )
    return backbone, knowledge


def adapter_from(
    facts: ModelFacts, groups: Groups, knowledge: Knowledge, *, prepare: bool = False
) -> Adapter:
    """The adapter, with what it has learned."""
    learned = groups.get("adapter", {})
    adapter = made(lambda: new_adapter(facts.settings.chosen_adapter, knowledge), learned, _size(groups))
    if prepare:
        adapter.prepare()
    adapter.load_state_dict(learned, strict=not prepare, assign=True)
    return adapter.eval().requires_grad_(False)


def whole(
    facts: ModelFacts,
    groups: Groups,
    backbone: Backbone,
    knowledge: Knowledge,
    adapter: Adapter,
    clock: Clock | None,
    holdings: Holdings,
) -> ModelState:
    """The model that has these parts."""
    return ModelState(
        settings=facts.settings,
        roster=holdings.roster,
        schema=facts.metadata,
        kinds=tuple(Kind.parse(kind) for kind in facts.kinds),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=Calibration(**groups["calibration"]),
        catalogue=holdings.catalogue,
        backbone_features=holdings.backbone_features,
        judgement=facts.judgement,
        middle=None if facts.middle is None else Kind.parse(facts.middle),
        row_metadata=holdings.row_metadata,
        arrived=facts.arrived,
        clock=clock,
        arrivals=facts.arrivals,
    )


def _size(groups: Groups) -> int:
    return sum(tensor.numel() for tensors in groups.values() for tensor in tensors.values())


def _catalogue(facts: ModelFacts, parts: Groups, tensors: dict[str, Tensor]) -> FeatureStore:
    own, contexts = parts["features"], parts["contexts"]
    metadata = own.pop("metadata").numpy()
    counts = contexts["counts"].tolist()
    rows = [part.numpy() for part in torch.split(contexts["rows"], counts)]
    values = [part.numpy() for part in torch.split(contexts["values"], counts)]
    kinds = [Kind.parse(kind) for kind in facts.features.kinds]
    since = facts.features.observed_since
    every = zip(
        facts.features.names, kinds, facts.features.in_backbone, facts.features.shots, metadata, rows, values,
        facts.features.finds_scale, records_from(tensors.get("records"), len(counts)),
        feature_arrivals(parts, counts, since), feature_times(parts, counts), strict=True,
    )  # fmt: skip
    heads = Heads(**own)
    return FeatureStore(heads, Names(facts.backbone_features, "feature")).put(
        [Feature(*each) for each in every], heads
    )
