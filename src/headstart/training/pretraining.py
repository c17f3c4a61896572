"""Pretraining of a backbone on the observations of a table."""

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
    """Settings of pretraining; a fraction ``validation_share`` of the observations is for early stopping."""

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
    """Train the backbone on ``cells`` and freeze it.

    Parameters
    ----------
    backbone : Backbone
        The backbone; ``trained_by`` declares whether it is fitted by closed-form sweeps or gradient descent.
    cells : Cells
        The observations, one line per row.
    description : Description
        The encoded metadata of the features, for backbones that use it.
    config : PretrainingConfig
        The settings.
    seed, reporter, checkpoint
        As in ``Loop``.
    """
    if backbone.trained_by == "sweeps":
        # Sweeps in one process are fast and need no checkpoint; one of several processes can fail.
        sweep_checkpoint = checkpoint if process_group().launched else None
        _fit_by_sweeps(backbone, cells, description, config, seed, reporter, sweep_checkpoint)
    else:
        _fit_by_gradients(backbone, cells, config, seed, reporter, checkpoint)
    backbone.eval().requires_grad_(False)


def _fit_by_sweeps(
    backbone: Backbone,
    cells: Cells,
    description: Description,
    config: PretrainingConfig,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None,
) -> None:
    """Run the sweeps; closed forms do not overfit, so there is no validation."""
    generator = torch.Generator().manual_seed(seed)
    if checkpoint is None:
        errors = backbone.train_by_sweeps(cells, description, generator)
    else:
        errors = backbone.train_resumably(
            cells, description, generator, checkpoint, config.checkpoint_seconds
        )
    with reporter.bar("Training the backbone", backbone.sweeps) as bar:
        for error in errors:
            bar.step(f"error {error:.4f}" if error else "")


def _fit_by_gradients(
    backbone: Backbone,
    cells: Cells,
    config: PretrainingConfig,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None,
) -> None:
    """Minimise the backbone's loss by gradient descent, with early stopping on held-out observations."""
    is_held_out = (
        torch.rand(len(cells.index), generator=torch.Generator().manual_seed(seed)) < config.validation_share
    )
    training, held_out = cells.keep(~is_held_out), cells.keep(is_held_out)
    observed_rows = torch.nonzero(training.counts)[:, 0]
    config = config.resolve_epochs(len(observed_rows))
    loop = Loop(backbone, config, seed=seed, title="Training the backbone", reporter=reporter,
                checkpoint=checkpoint)  # fmt: skip

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        order = observed_rows[torch.randperm(len(observed_rows), generator=generator)]
        for rows in config.batches(order):
            yield backbone.loss(training.take(rows), generator)

    def validate() -> float:
        return held_out_nll(backbone, training, held_out)

    validates = config.patience is not None and len(held_out.index) > 0
    loop.run(losses, validate if validates else None)


@torch.no_grad()
def held_out_nll(backbone: Backbone, observed: Cells, held_out: Cells) -> float:
    """Compute the mean negative log-likelihood of ``held_out`` cells, given the ``observed`` cells."""
    total = torch.zeros(())
    for rows in torch.split(torch.arange(len(observed)), 1024):
        activation = backbone.states(observed.take(rows)).activation
        cells = held_out.take(rows)
        logits = sampled_products(activation, backbone.weight, cells) + backbone.bias[cells.index]
        total += backbone.likelihood.nll(logits, cells.values, backbone.kinds[cells.index]).sum()
    return float(total) / max(len(held_out.index), 1)
