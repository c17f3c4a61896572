"""The parts of a fitted model, and how training makes them from a table."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge, StreamingAdapter
from headstart.adapters.registry import adapter_config
from headstart.backbones.protocol import Backbone, RowStates
from headstart.backbones.registry import backbone_config
from headstart.config import Config
from headstart.errors import InputError
from headstart.model.catalogue import Catalogue, Feature
from headstart.progress import Reporter
from headstart.storage import read_json, write_json
from headstart.table import Cells, Kind, MetadataSchema, Names, Table
from headstart.table.cells import offsets
from headstart.training.calibration import Calibration
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.stages import feature_batch, train_adapter, train_backbone
from headstart.training.tasks import cross_fitted_tasks, disjoint_tasks, hold_back

FEWEST_FEATURES = 4


class Settings(Config):
    """All that decides a fit besides the table."""

    backbone: dict[str, Any]
    adapter: dict[str, Any]
    pretraining: PretrainingConfig
    metatraining: MetaTrainingConfig
    meta_share: float | None = Field(None, gt=0, lt=1)
    random_state: int = Field(ge=0, lt=2**63)


@dataclass
class Fitted:
    """What a model holds after fit; only ``rows``, ``states`` and ``catalogue`` ever change."""

    settings: Settings
    rows: Names
    states: RowStates  # as the adapter's heads read them
    schema: MetadataSchema | None
    kinds: tuple[Kind, ...]  # of the table it was fitted on, the most usual first
    backbone: Backbone
    knowledge: Knowledge
    adapter: Adapter
    calibration: Calibration
    catalogue: Catalogue
    encoded: Names  # the features the backbone reads, in its order

    @torch.no_grad()
    def adapt(self, features: list[Feature]) -> None:
        """Give these features heads by one pass of the adapter, and keep them."""
        self.catalogue.put(features, self.adapter.adapt(batch_of(features, len(self.rows)), self.states))

    @torch.no_grad()
    def observe(self, feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Refine one feature's head: from sums over its observations where the adapter has such."""
        after, adapter = feature.observed(rows, values), self.adapter
        code = torch.tensor([feature.kind.code])
        if not (isinstance(adapter, StreamingAdapter) and bool(adapter.streams(code))):
            self.adapt([after])
            return

        def evidence(of: Feature) -> Tensor:
            return adapter.evidence(batch_of([of], len(self.rows)), self.states)

        known = self.catalogue.evidence.get(feature.name)
        total = evidence(feature) if known is None else known
        total = total - evidence(feature.among(rows)) + evidence(after.among(rows))
        heads = adapter.settle(total, batch_of([after], len(self.rows)))
        self.catalogue.put([after], heads)
        self.catalogue.evidence[after.name] = total


def batch_of(features: list[Feature], rows: int) -> FeatureBatch:
    """Turn features and their contexts into what adapters read."""
    counts = torch.tensor([len(feature.rows) for feature in features], dtype=torch.int64)
    scaled = [(feature.values - feature.kind.offset) / feature.kind.span for feature in features]
    return FeatureBatch(
        Cells(
            offsets(counts),
            torch.from_numpy(np.concatenate([feature.rows for feature in features])),
            torch.from_numpy(np.concatenate(scaled)).float(),
            rows,
        ),
        torch.from_numpy(np.stack([feature.metadata for feature in features])),
        torch.tensor([feature.kind.code for feature in features], dtype=torch.int64),
    )


def fit_parts(
    table: Table, settings: Settings, reporter: Reporter, checkpoint: Path | None, resume: bool
) -> Fitted:
    """Train backbone and adapter, on all features or each on its share; make every feature's head."""
    seed = settings.random_state
    trained, met = part_features(table, settings.meta_share, seed)
    if checkpoint is not None:
        open_checkpoint(checkpoint, table, settings, resume)
    backbone, knowledge = train_backbone(
        table.with_features(trained),
        backbone_config(settings.backbone),
        settings.pretraining,
        seed=seed,
        reporter=reporter,
        checkpoint=checkpoint and checkpoint / "backbone.safetensors",
    )
    batch = feature_batch(table.with_features(met))
    if settings.meta_share is None:
        tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=seed)
    else:
        tasks = disjoint_tasks(batch, knowledge)
    adapter = train_adapter(
        adapter_config(settings.adapter),
        knowledge,
        tasks,
        settings.metatraining,
        seed=seed,
        reporter=reporter,
        checkpoint=checkpoint and checkpoint / "adapter.safetensors",
    )
    _, unseen = hold_back(tasks, settings.metatraining.validation, seed)
    with torch.no_grad():
        states = adapter.refine(knowledge.states)
        shown = adapter.adapt(batch.take(torch.arange(1)), states)
    fitted = Fitted(
        settings=settings,
        rows=table.rows,
        states=states,
        schema=table.schema,
        kinds=tuple(kind for kind, _ in Counter(table.kinds).most_common()),
        backbone=backbone,
        knowledge=knowledge,
        adapter=adapter,
        calibration=Calibration.fit(adapter, knowledge, unseen, seed=seed),
        catalogue=Catalogue(shown),
        encoded=table.features.take(trained),
    )
    # An adapter that takes any number of observations makes every head; what it makes can be refined.
    fixed = not isinstance(adapter, StreamingAdapter)
    features = features_of(table, set(trained.tolist()), fixed=fixed)
    if fixed:
        own = knowledge.heads.plain(states.activation.shape[1])  # alike to what the adapter makes
        fitted.catalogue.put([features[i] for i in trained], own)
    rest = [feature for feature in features if not feature.fixed]
    for start in range(0, len(rest), 1024):
        fitted.adapt(rest[start : start + 1024])
    return fitted


def part_features(
    table: Table, meta_share: float | None, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw which features train the backbone and which meta-train the adapter; empty ones do neither.

    Without a share, all of them do both.
    """
    observed = np.flatnonzero(table.counts)
    if len(observed) < FEWEST_FEATURES:
        raise InputError(
            f"the table has {len(observed)} features with observations; at least {FEWEST_FEATURES} are "
            "needed, some to train the backbone and some to learn how to add new ones"
        )
    if meta_share is None:
        return observed, observed
    order = np.random.default_rng(seed).permutation(observed)
    met = min(max(2, round(meta_share * len(observed))), len(observed) - 2)
    return np.sort(order[met:]), np.sort(order[:met])


def features_of(table: Table, encoded: set[int], *, fixed: bool) -> list[Feature]:
    """All features of a table; if the backbone's own heads are ``fixed``, these without their contexts."""
    order = np.argsort(table.feature_index, kind="stable")
    ends = np.cumsum(table.counts)
    rows, values = table.row_index[order].astype(np.int64), table.values[order]
    metadata = table.encoded_metadata()
    features = []
    for i, (name, kind) in enumerate(zip(table.features, table.kinds, strict=True)):
        count = int(table.counts[i])
        held = slice(0, 0) if fixed and i in encoded else slice(ends[i] - count, ends[i])
        features.append(Feature(name, kind, i in encoded, count, metadata[i], rows[held], values[held]))
    return features


def open_checkpoint(folder: Path, table: Table, settings: Settings, resume: bool) -> None:
    """Make the folder ready: go on with what it holds, or start anew."""
    mark = folder / "fit.json"
    facts = {"table": table.fingerprint(), "settings": json.loads(settings.model_dump_json())}
    if resume and mark.exists():
        if read_json(mark) != facts:
            raise InputError(
                f"{folder} holds the checkpoint of a fit with other data or settings; "
                "resume with the same ones, or start anew without resume"
            )
        return
    if mark.exists():
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty and holds no checkpoint; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(mark, facts)
