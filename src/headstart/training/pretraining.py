"""Pretraining: a backbone learns its features, judged on observations kept back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from headstart.backbones.base import Backbone
from headstart.core.types import Description
from headstart.distributed import process_group
from headstart.linalg.ragged import sampled_products
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.training.loop import Loop, LoopConfig


class PretrainingConfig(LoopConfig):
    """How to train a backbone; ``validation_share`` of the observations is kept back to stop in time."""

    epochs: int = Field(200, ge=0)
    batch_size: int = Field(256, ge=1)
    min_steps: int = Field(16, ge=1)
    learning_rate: float = Field(2e-3, gt=0)
    weight_decay: float = Field(1e-5, ge=0)
    patience: int | None = Field(20, ge=1)
    validation_share: float = Field(0.05, ge=0, lt=1)


def pretrain(
    backbone: Backbone,
    cells: Cells,
    description: Description,
    config: PretrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
) -> None:
    """Train the backbone on rows × its features, then freeze it; some read the features' metadata."""
    if backbone.trained_by == "sweeps":
        # By itself a process sweeps in little time; of several, one may well be lost before they end.
        kept = checkpoint if process_group().launched else None
        _sweep(backbone, cells, description, config, seed, reporter, kept)
    else:
        _descend(backbone, cells, config, seed, reporter, checkpoint)
    backbone.eval().requires_grad_(False)


def _sweep(
    backbone: Backbone,
    cells: Cells,
    description: Description,
    config: PretrainingConfig,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None,
) -> None:
    """Closed forms need no validation: they do not overfit."""
    given = cells, description, torch.Generator().manual_seed(seed)
    with reporter.bar("Training the backbone", backbone.sweeps) as bar:
        for error in (
            backbone.train_by_sweeps(*given)
            if checkpoint is None
            else backbone.train_resumably(*given, checkpoint, config.checkpoint_seconds)
        ):
            bar.step(f"error {error:.4f}" if error else "")


def _descend(
    backbone: Backbone,
    cells: Cells,
    config: PretrainingConfig,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None,
) -> None:
    loop = Loop(backbone, config, seed=seed, title="Training the backbone", reporter=reporter,
                checkpoint=checkpoint)  # fmt: skip
    held = (
        torch.rand(len(cells.index), generator=torch.Generator().manual_seed(seed)) < config.validation_share
    )
    kept, held_out = cells.keep(~held), cells.keep(held)
    filled = torch.nonzero(kept.counts)[:, 0]  # a row without observations has nothing to teach

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        order = filled[torch.randperm(len(filled), generator=generator)]
        for rows in config.batches(order):
            yield backbone.loss(kept.take(rows), generator)

    def validate() -> float:
        return held_out_nll(backbone, kept, held_out)

    watched = config.patience is not None and len(held_out.index) > 0
    loop.run(losses, validate if watched else None)


@torch.no_grad()
def held_out_nll(backbone: Backbone, observed: Cells, held_out: Cells, batch: int = 1024) -> float:
    """Mean negative log-likelihood of ``held_out``, predicted from what is ``observed`` of the same rows."""
    total = torch.zeros(())
    for rows in torch.split(torch.arange(len(observed)), batch):
        activation = backbone.states(observed.take(rows)).activation
        cells = held_out.take(rows)
        logits = sampled_products(activation, backbone.weight, cells) + backbone.bias[cells.index]
        total += backbone.likelihood.nll(logits, cells.values, backbone.kinds[cells.index]).sum()
    return float(total) / max(len(held_out.index), 1)
