"""Examine why MAML starts badly on MovieLens-1M with the paper's settings.

    python benchmarks/maml_start.py --data DATA --work WORK

Uses split 100, which no result is reported for. Prints how far ten steps of Adam can move a prediction, the
error of the start in the course of meta-training, and the loss after ten steps from displaced starts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ablation.protocol import Split, preset_of
from headstart.adapters import build_adapter
from headstart.adapters.finetuning import MAML, MAMLConfig, fine_tune
from headstart.core.predictive import predict_cells
from headstart.core.types import Heads
from headstart.datasets import load_dataset
from headstart.training.episodes import EpisodeDrawer, draw_episode, shared_loss

SEED = 100
SHOTS = (0, 1, 2, 4, 8, 16, 32)


class Start:
    """A start of MAML for the ratings of a split: one head, and its scores."""

    def __init__(self, split: Split, weight: Tensor, bias: Tensor) -> None:
        self.split, self.weight, self.bias = split, weight.detach(), bias.detach()

    def displaced(self, by: float) -> Start:
        """Return the start with another bias."""
        return Start(self.split, self.weight, self.bias + by)

    def heads(self, count: int) -> Heads:
        """Return the same head ``count`` times."""
        return Heads(self.weight.expand(count, -1), self.bias.expand(count))

    def error(self) -> float:
        """Return the RMSE on the new features without observations, in stars."""
        test, knowledge = self.split.test, self.split.trainer.knowledge
        predicted = test.predict(self.heads(len(test)), knowledge.states, knowledge.likelihood)
        mean, _ = test.to_values(predicted.mean, predicted.std)
        return float(np.sqrt(np.mean((mean - test.truth) ** 2)))

    @torch.no_grad()
    def loss(self, shots: int, config: MAMLConfig) -> float:
        """Return the outer loss at ``shots`` on the meta-train features: the mean over features."""
        tasks, knowledge = self.split.trainer.training, self.split.trainer.knowledge
        batch, states = tasks.with_states(torch.nonzero(tasks.batch.shots > shots)[:, 0])
        generator = torch.Generator().manual_seed(SEED)
        episode = draw_episode(batch, states, torch.full((len(batch),), shots), generator)
        heads = fine_tune(
            self.heads(len(batch)),
            episode.context,
            states,
            knowledge.likelihood,
            config.inner_steps,
            config.inner_learning_rate,
        )
        predicted = predict_cells(heads, states, episode.targets, batch.kinds, knowledge.likelihood)
        targets = episode.targets
        totals = torch.zeros(len(batch)).index_add(0, targets.lines, predicted.nll(targets.values))
        return float((totals / targets.counts).mean())


def train(split: Split, config: MAMLConfig, epochs: int, every: int) -> tuple[Start, list[float]]:
    """Meta-train MAML; return its start, and the error of the start after each ``every`` steps."""
    trainer = split.trainer
    adapter = build_adapter(config, trainer.knowledge)
    assert isinstance(adapter, MAML)
    adapter.prepare()
    adapter.train()
    drawer = EpisodeDrawer(trainer.training, split.preset.metatraining.complete_for(adapter), seed=SEED)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=config.outer_learning_rate)
    generator, kind = torch.Generator().manual_seed(SEED), int(trainer.training.batch.kinds[0])

    def start() -> Start:
        return Start(split, adapter.weight[kind], adapter.bias[kind])

    errors, steps = [start().error()], 0
    for _ in range(epochs):
        for episode in drawer.epoch(generator):
            optimizer.zero_grad()
            shared_loss(adapter, trainer.knowledge.likelihood, episode, 0).backward()
            optimizer.step()
            steps += 1
            if steps % every == 0:
                errors.append(start().error())
    return start(), errors


def line(*cells: object) -> None:
    print("| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint of the backbone")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    table, preset = load_dataset("movielens", options.data), preset_of("movielens")
    split = Split.prepare(table, preset, SEED, checkpoint=options.work / f"movielens-{SEED}.safetensors")
    activation = split.trainer.knowledge.states.activation
    total = float(activation.abs().sum(1).mean()) + 1
    print(f"mean over rows of Σ|d| + 1: {total:.1f}")
    for rate in (0.01, 0.003):
        print(f"ten steps of {rate} move a logit by up to {10 * rate * total:.2f}")
    print("\nRMSE of the start without observations, after each 500 steps of meta-training\n")
    starts = {}
    for inner, outer in ((0.01, 0.01), (0.01, 0.0003), (0.003, 0.001)):
        config = MAMLConfig(inner_learning_rate=inner, outer_learning_rate=outer)
        starts[inner, outer], errors = train(split, config, epochs=15, every=500)
        line(f"inner {inner}, outer {outer}", *errors)
    print("\nLoss after ten steps of 0.01 by shots, of the start of (0.01, 0.0003) with a displaced bias\n")
    line("displaced by", *SHOTS)
    for by in np.arange(-0.4, 1.01, 0.2).round(1).tolist():
        start = starts[0.01, 0.0003].displaced(by)
        line(f"{by:+.1f}", *(start.loss(k, MAMLConfig()) for k in SHOTS))


if __name__ == "__main__":
    main()
