"""Assemble a saved model from its facts and tensors, for ``loading`` and ``lazy``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module

from headstart.adapters.base import Adapter, new_adapter
from headstart.backbones.base import BACKBONES, Backbone
from headstart.core.types import Heads, Knowledge, RowStates, Scales
from headstart.model.features import Feature, FeatureStore
from headstart.model.rows import RowMetadata, RowStore
from headstart.model.saving.format import (
    Groups,
    ModelFacts,
    build_row_store,
    context_values,
    knowledge_values,
    read_by_feature,
    read_clock,
    read_feature_arrivals,
    read_heads,
    read_known_weights,
    read_not_applicable,
    read_row_metadata,
    read_table_values,
    read_table_weights,
    split_array,
    table_weights,
    widen_tensors,
    with_copies,
    with_references,
)
from headstart.model.saving.validation import build_module, check_counts, check_tensors
from headstart.model.state import Clock, ModelState
from headstart.table import Cells, Kind, Kinds, Names
from headstart.table.cells import index_dtype
from headstart.table.metadata import records_from
from headstart.training.calibration import Calibration

# Tensors that folders of earlier versions may lack. Their first values change nothing.
_ADDED = ("row_shift", "row_shift_shares", "relative_noise", "known_heads.heads", "known_heads.positions",
          "known_heads.shares", "kernel.landmarks", "kernel.scales")  # fmt: skip


@dataclass(frozen=True)
class StoredItems:
    """The features and rows of a saved model."""

    feature_store: FeatureStore
    row_store: RowStore
    backbone_features: Names
    row_metadata: RowMetadata | None


def assemble(facts: ModelFacts, tensors: dict[str, Tensor]) -> ModelState:
    """Assemble a model, and check that its facts and tensors agree."""
    tensors = widen_tensors(tensors)
    groups = group_tensors(with_copies(tensors, facts.copies))
    check_tensors(groups)
    clock = read_clock(facts, groups)
    backbone, knowledge = build_backbone(facts, groups, len(facts.backbone_features), clock)
    states = RowStates(**groups["states"])
    check_counts(facts, knowledge, states, groups)
    adapter = build_adapter(facts, groups, knowledge)
    feature_store = _build_feature_store(facts, groups, tensors)
    feature_store = with_references(feature_store, facts.features.names, groups)
    stored = StoredItems(
        feature_store,
        build_row_store(facts, states, groups, feature_store),
        Names(facts.backbone_features, "feature"),
        read_row_metadata(facts, groups, backbone.activation_size, len(facts.rows)),
    )
    return build_state(facts, groups, backbone, knowledge, adapter, clock, stored)


def group_tensors(tensors: dict[str, Tensor]) -> Groups:
    """Group tensors by the part of the model that they belong to.

    The part is the name up to the first slash; for tensors of the knowledge, up to the last slash.
    """
    groups: Groups = {}
    for name, value in tensors.items():
        group, _, rest = name.rpartition("/") if name.startswith("knowledge/") else name.partition("/")
        groups.setdefault(group, {})[rest] = value
    _add_missing_tensors(groups)
    return groups


def _add_missing_tensors(groups: Groups) -> None:
    """Add the tensors of the calibration that folders of earlier versions may lack: they change nothing."""
    calibration = groups.get("calibration", {})
    if "factors" in calibration and "known_factors" not in calibration:
        none = Calibration.none(tuple(calibration["marks"].tolist()))
        calibration.update(edge=none.edge, known_factors=none.known_factors)


def build_backbone(
    facts: ModelFacts, groups: Groups, features: int, clock: Clock | None
) -> tuple[Backbone, Knowledge]:
    """Build the backbone of ``features`` features, and the knowledge of its training data."""
    settings, tensors = facts.settings, groups["knowledge"]
    backbone = build_module(
        lambda: BACKBONES.part_of(settings.backbone)(
            settings.backbone, tensors["kinds"], groups["backbone_grid"][""]
        ),
        groups["backbone"],
        _count_numbers(groups),
    )
    load_tensors(backbone, groups["backbone"])
    backbone.eval().requires_grad_(False)
    index = tensors["index"].to(index_dtype(features))
    weights = table_weights(clock, read_table_weights(groups))
    knowledge = Knowledge(
        RowStates(**groups["knowledge/states"]),
        Cells(tensors["indptr"], index, knowledge_values(tensors), features, weights),
        Heads(**groups["knowledge/heads"]),
        tensors["metadata"],
        tensors["kinds"],
        backbone.likelihood,
        facts.metadata.widths if facts.metadata else (),
        Scales(**groups["knowledge/scales"]) if "knowledge/scales" in groups else None,
        structures=facts.metadata.structures if facts.metadata else (),
    )
    return backbone, knowledge


def load_tensors(module: Module, tensors: dict[str, Tensor]) -> None:
    """Give a part its saved tensors, without a copy; tensors that these lack may keep their first values."""
    first = {name: tensor for name, tensor in module.state_dict().items() if name.endswith(_ADDED)}
    module.load_state_dict(first | tensors, assign=True)


def build_adapter(facts: ModelFacts, groups: Groups, knowledge: Knowledge) -> Adapter:
    """Build the adapter with its learned parameters."""
    learned = groups.get("adapter", {})
    adapter = build_module(
        lambda: new_adapter(facts.settings.chosen_adapter, knowledge), learned, _count_numbers(groups)
    )
    load_tensors(adapter, learned)
    return adapter.eval().requires_grad_(False)


def build_state(
    facts: ModelFacts,
    groups: Groups,
    backbone: Backbone,
    knowledge: Knowledge,
    adapter: Adapter,
    clock: Clock | None,
    stored: StoredItems,
) -> ModelState:
    """Build the model state from these parts."""
    return ModelState(
        settings=facts.settings,
        row_store=stored.row_store,
        schema=facts.metadata,
        kinds=tuple(Kind.parse(kind) for kind in facts.kinds),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=Calibration(**groups["calibration"]),
        feature_store=stored.feature_store,
        backbone_features=stored.backbone_features,
        judgement=facts.judgement,
        local=facts.local,
        known_weights=read_known_weights(groups),
        middle=None if facts.middle is None else Kind.parse(facts.middle),
        row_metadata=stored.row_metadata,
        arrived=facts.arrived,
        clock=clock,
        table_weights=read_table_weights(groups),
        table_values=read_table_values(groups),
        arrivals=facts.arrivals,
        words=facts.words,
        not_applicable=read_not_applicable(
            groups, stored.row_store.names, stored.feature_store.feature_names
        ),
    )


def _count_numbers(groups: Groups) -> int:
    return sum(tensor.numel() for tensors in groups.values() for tensor in tensors.values())


def _build_feature_store(facts: ModelFacts, groups: Groups, tensors: dict[str, Tensor]) -> FeatureStore:
    """Build the features with their contexts and current heads."""
    head_tensors, contexts = groups["features"], groups["contexts"]
    metadata = head_tensors.pop("metadata").numpy()
    counts = contexts["counts"].tolist()
    rows, values = (
        split_array(part, counts) for part in (contexts["rows"].numpy(), context_values(contexts))
    )
    kinds = Kinds.parse(facts.features.kinds)
    fields = zip(
        facts.features.names, kinds, facts.features.in_backbone, facts.features.shots, metadata, rows, values,
        facts.features.finds_scale, records_from(tensors.get("records"), len(counts)),
        read_feature_arrivals(groups, counts, facts.features.observed_since),
        read_by_feature(groups, "times", counts), read_by_feature(groups, "observation_weights", counts),
        strict=True,
    )  # fmt: skip
    heads = read_heads(head_tensors, groups.get("covariances"))
    return FeatureStore(heads, Names(facts.backbone_features, "feature")).put(
        [Feature(*values) for values in fields], heads
    )
