"""Meta-training: an adapter learns to make heads from features treated as new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from headstart.adapters.protocol import Adapter, FeatureBatch, Knowledge
from headstart.progress import Reporter
from headstart.training.episodes import Episode, draw_episode, draw_shots, episode_loss
from headstart.training.loop import Loop, LoopConfig

VALIDATION_SHOTS = (0, 1, 2, 4, 8, 16, 32)


class MetaTrainingConfig(LoopConfig):
    """How to meta-train. ``validation`` is the share of meta-train features kept back to stop in time."""

    epochs: int = Field(300, ge=0)
    batch_size: int = Field(64, ge=1)
    fewest_steps: int = Field(8, ge=1)
    learning_rate: float = Field(5e-4, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    patience: int | None = Field(50, ge=1)
    most_shots: int = Field(32, ge=0)
    validation: float = Field(0.1, gt=0, lt=1)


def meta_train(
    adapter: Adapter,
    knowledge: Knowledge,
    tasks: FeatureBatch,
    validation: FeatureBatch,
    config: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
) -> None:
    """Train the adapter's parameters on ``tasks``; the backbone's states were computed once and stay."""
    loop = Loop(adapter, config, seed=seed, title=f"Meta-training {adapter.name}", reporter=reporter,
                checkpoint=checkpoint)  # fmt: skip
    teaching = torch.nonzero(tasks.shots >= 1)[:, 0]  # without an observation there is no target

    def losses(generator: torch.Generator) -> Iterator[Tensor]:
        order = teaching[torch.randperm(len(teaching), generator=generator)]
        for features in config.batches(order):
            batch = tasks.take(features)
            shots = draw_shots(batch, config.most_shots, generator)
            yield episode_loss(adapter, knowledge, draw_episode(batch, shots, generator))

    episodes = validation_episodes(validation, config.most_shots, seed)

    def validate() -> float:
        scores = [float(episode_loss(adapter, knowledge, episode)) for episode in episodes]
        return sum(scores) / len(scores)

    watched = config.patience is not None and len(episodes) > 0
    loop.run(losses, validate if watched else None)
    adapter.requires_grad_(False)


def validation_episodes(features: FeatureBatch, most_shots: int, seed: int) -> list[Episode]:
    """One fixed episode for each of a few numbers of shots, over the features that have enough left."""
    generator = torch.Generator().manual_seed(seed)
    episodes = []
    for shots in VALIDATION_SHOTS:
        enough = torch.nonzero(features.shots > shots)[:, 0]
        if shots <= most_shots and len(enough) > 0:
            batch = features.take(enough)
            episodes.append(draw_episode(batch, torch.full((len(batch),), shots), generator))
    return episodes
