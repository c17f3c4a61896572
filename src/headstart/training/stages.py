"""The two stages of training, from a table to something that adapts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headstart.adapters.finetune import FineTunedConfig
from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.adapters.registry import adapter_config, build_adapter, training_config
from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.backbones.registry import build_backbone, value_grid
from headstart.config import Config
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.metatraining import MetaTrainingConfig, meta_train
from headstart.training.pretraining import PretrainingConfig, pretrain
from headstart.training.tasks import Tasks, hold_back


def train_backbone(
    table: Table,
    backbone: BackboneConfig,
    pretraining: PretrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
) -> tuple[Backbone, Knowledge]:
    """Train a backbone on all features of ``table`` and compute once what it knows of every row."""
    cells = table.cells()
    with seeded(seed):
        model = build_backbone(backbone, torch.from_numpy(table.kinds.codes), value_grid(cells))
    metadata = torch.from_numpy(table.encoded_metadata())
    pretrain(model, cells, pretraining, seed=seed, reporter=reporter, checkpoint=checkpoint,
             metadata=metadata)  # fmt: skip
    return model, knowledge_of(model, table)


def knowledge_of(backbone: Backbone, table: Table) -> Knowledge:
    """What adapters may know once the backbone is frozen."""
    cells = table.cells()
    metadata = torch.from_numpy(table.encoded_metadata())
    heads = backbone.heads.detach()
    return Knowledge(backbone.encode(cells), cells, heads, metadata, backbone.codes, backbone.likelihood)


def feature_batch(table: Table) -> FeatureBatch:
    """All features of a table, treated as new."""
    return FeatureBatch(
        table.cells().transpose(),
        torch.from_numpy(table.encoded_metadata()),
        torch.from_numpy(table.kinds.codes),
    )


def train_adapter(
    choice: str | Config | dict[str, Any],
    knowledge: Knowledge,
    tasks: Tasks,
    metatraining: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    trained: dict[str, Adapter] | None = None,
) -> Adapter:
    """Build an adapter and, if it learns, meta-train it on ``tasks``, part of them kept for validation.

    ``trained`` remembers what was meta-trained before, so that adapters which differ only in how they
    fine-tune afterwards (``maml-0`` and ``maml-10``, ``chn`` and ``chn-train-5``) share one training.
    """
    config, memory = adapter_config(choice, seed=seed), {} if trained is None else trained
    if isinstance(config, FineTunedConfig):
        base = train_adapter(config.base, knowledge, tasks, metatraining, seed=seed, reporter=reporter,
                             checkpoint=checkpoint, trained=memory)  # fmt: skip
        return build_adapter(config, knowledge, base).eval()
    shared = training_config(config)
    key = shared.model_dump_json()
    if key not in memory:
        with seeded(seed):
            memory[key] = build_adapter(shared, knowledge)
        if memory[key].learns:
            settings = metatraining.filled(memory[key])
            teaching, validation = hold_back(tasks, settings.validation, seed)
            meta_train(memory[key], knowledge, teaching, validation, settings, seed=seed, reporter=reporter,
                       checkpoint=checkpoint)  # fmt: skip
    adapter = build_adapter(config, knowledge)
    adapter.load_state_dict(memory[key].state_dict())
    return adapter.eval().requires_grad_(False)


class seeded:
    """Run a block that draws initial weights from a seed of its own, leaving the global one as it was."""

    def __init__(self, seed: int) -> None:
        self._fork = torch.random.fork_rng(devices=[])
        self._seed = seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *details: object) -> None:
        self._fork.__exit__(*details)  # type: ignore[arg-type]
