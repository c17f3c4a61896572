"""Meta-training of an adapter on known features treated as new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.core.types import VALIDATION_SHOTS, Knowledge
from headstart.progress import Reporter
from headstart.training.episodes import Episode, EpisodeDrawer, Tasks, draw_episode, episode_loss, shared_loss
from headstart.training.loop import Loop, LoopConfig


class MetaTrainingConfig(LoopConfig):
    """Settings of meta-training. An adapter can have its own defaults (``Adapter.meta_defaults``)."""

    epochs: int = Field(300, ge=0)
    batch_size: int = Field(64, ge=1)
    min_steps: int = Field(8, ge=1)
    learning_rate: float = Field(5e-4, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    patience: int | None = Field(50, ge=1)
    shots: Literal["uniform", "log"] = "uniform"  # the distribution of the number of shots
    max_shots: int = Field(32, ge=0)
    max_targets: int | None = Field(None, ge=1)  # per feature and episode; None: all
    weighting: float | None = Field(None, ge=0, le=1)  # see EpisodeDrawer; None: equal weights of targets
    epoch_features: int | None = Field(None, ge=1)  # features per epoch, at most; None: all
    average: Literal["targets", "features"] = "targets"  # of the loss, if there is no weighting
    # Fraction of the features held out for early stopping and calibration.
    validation_share: float = Field(0.1, ge=0, lt=1)

    def complete_for(self, adapter: Adapter) -> MetaTrainingConfig:
        """Complete the settings for ``adapter``.

        Its fixed settings (``meta_settings``) override those set here, which override its defaults.
        """
        settings = {**adapter.meta_defaults, **self.model_dump(exclude_unset=True), **adapter.meta_settings}
        return MetaTrainingConfig(**settings)


def meta_train(
    adapter: Adapter,
    knowledge: Knowledge,
    tasks: Tasks,
    validation: Tasks,
    config: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
) -> None:
    """Train the adapter on ``tasks`` with early stopping on ``validation``, and freeze it.

    The backbone is frozen; its row states are part of the tasks.
    """
    loop = Loop(adapter, config, seed=seed, title=f"Meta-training {adapter.config.name}", reporter=reporter,
                checkpoint=checkpoint)  # fmt: skip
    drawer = EpisodeDrawer(tasks, config, seed=seed)

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        for episode in drawer.epoch(generator):
            dropout_seed = int(torch.randint(2**62, (), device="cpu"))  # the same in all processes
            yield shared_loss(adapter, knowledge.likelihood, episode, dropout_seed)

    validates = config.patience is not None
    episodes = validation_episodes(validation, config.max_shots, seed) if validates else {}

    def validate() -> float:
        scores = [_mean_loss(adapter, knowledge, by_fold) for by_fold in episodes.values()]
        return sum(scores) / len(scores)

    loop.run(losses, validate if episodes else None)
    adapter.requires_grad_(False)


def _mean_loss(adapter: Adapter, knowledge: Knowledge, episodes: list[Episode]) -> float:
    """Return the mean loss over the targets of several episodes, by their weights."""
    counts = [float(episode.targets.weighted_counts.sum()) for episode in episodes]
    losses = [float(episode_loss(adapter, knowledge.likelihood, episode)) for episode in episodes]
    return sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)


def validation_episodes(tasks: Tasks, max_shots: int, seed: int) -> dict[int, list[Episode]]:
    """Draw episodes for ``VALIDATION_SHOTS``: one per fold, of all features with at least one target."""
    generator = torch.Generator().manual_seed(seed)
    episodes: dict[int, list[Episode]] = {}
    for shots in VALIDATION_SHOTS:
        enough = torch.nonzero(tasks.batch.shots > shots)[:, 0]
        if shots <= max_shots and len(enough) > 0:
            episodes[shots] = [
                draw_episode(batch, states, torch.full((len(batch),), shots), generator)
                for batch, states in tasks.take(enough).split()
            ]
    return episodes
