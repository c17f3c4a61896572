"""Measure the effect of choices that the paper leaves open, with its settings on two small tables.

    python benchmarks/open_choices.py --data DATA

The tables are the neuropathic data and the films of MovieLens latest-small with 50 ratings or more. The
numbers are means over splits with seeds from 100 on, which no reported result uses.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.backbones.pvae import PVAE
from headstart.datasets import load_dataset, movielens_small
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import Score, score
from headstart.evaluate.splits import split_features
from headstart.experiments.presets import Preset, preset
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.training.recipe import Recipe, TrainedParts, train
from headstart.training.table_inputs import feature_batch, modelled_table

SHOTS = (0, 1, 4, 16, 32)
SEEDS = (100, 101, 102)
DRAWS = 20  # of a row's code


def score_shown_inputs(self: PVAE, cells: Cells, generator: torch.Generator) -> Tensor:
    """Compute the loss of ``PVAE`` over the inputs that the encoder reads only."""
    rate = torch.rand(len(cells), generator=generator) * self.config.max_drop_rate
    shown = cells.keep(torch.rand(len(cells.index), generator=generator) >= rate[cells.lines])
    mean, log_variance = self.posterior(shown)
    noise = torch.randn(mean.shape, generator=generator)
    return self.negative_elbo(shown, mean, log_variance, noise)


def posterior_without_clamp(self: PVAE, cells: Cells) -> tuple[Tensor, Tensor]:
    """Compute the posterior of ``PVAE`` without limits of the log-variance."""
    mean, log_variance = self.encoder(self.set_encoder(cells)).chunk(2, dim=1)
    return mean, log_variance


@contextmanager
def changed(**methods: Callable[..., Any]) -> Iterator[None]:
    """Replace methods of ``PVAE`` during the block."""
    before = {name: getattr(PVAE, name) for name in methods}
    try:
        for name, method in methods.items():
            setattr(PVAE, name, method)
        yield
    finally:
        for name, method in before.items():
            setattr(PVAE, name, method)


def train_split(table: Table, chosen: Preset, seed: int) -> tuple[TrainedParts, Table]:
    """Train a backbone and a CHN on a split, and return them with the table of the held-out features."""
    split = split_features(table, chosen.test_share, chosen.meta_share, seed)
    recipe = Recipe(
        backbone=chosen.backbone,
        pretraining=chosen.pretraining,
        metatraining=chosen.metatraining,
        meta_share=chosen.meta_share,
        random_state=seed,
    )
    trained = train(
        table,
        split.train,
        split.meta_train,
        recipe,
        {"chn": chosen.chn},
        reporter=Reporter(quiet=True),
        checkpoint=lambda _: None,
    )
    return trained, table.with_features(split.meta_test)


@torch.no_grad()
def score_split(
    trained: TrainedParts, new: Table, seed: int, shots: tuple[int, ...] = SHOTS, draws: int = 0
) -> dict[int, dict[str, Score]]:
    """Score the CHN by shots; with ``draws``, average the predictions of codes drawn from the posterior."""
    test = KShotTest(feature_batch(modelled_table(new, "logistic")), new.kinds, shots, seed)
    states, adapter = trained.knowledge.states, trained.adapters["chn"].adapter
    activations = [states.activation]
    if draws:
        noise = torch.randn(draws, *states.code.shape, generator=torch.Generator().manual_seed(seed))
        activations = [trained.backbone.decoder(states.code + states.code_std * one) for one in noise]
    scores = {}
    for k in shots:
        heads = adapter.adapt(test.context(k), adapter.refine(states))
        means = [
            test.predict(heads, replace(states, activation=one), trained.knowledge.likelihood).mean
            for one in activations
        ]
        mean, _ = test.to_values(torch.stack(means).mean(0), torch.zeros_like(means[0]))
        scores[k] = score(test.truth, mean, test.lines.numpy(), test.kinds.numpy())
    return scores


def measure_choices(
    name: str, table: Table, chosen: Preset, metric: str, seeds: tuple[int, ...] = SEEDS
) -> None:
    """Print the scores with each choice, and the paired difference to ours."""
    values: dict[str, list[list[float]]] = {}
    for seed in seeds:
        ours, new = train_split(table, chosen, seed)
        found = {"ours": score_split(ours, new, seed)}
        found[f"predictions averaged over {DRAWS} codes"] = score_split(ours, new, seed, draws=DRAWS)
        with changed(loss=score_shown_inputs):
            found["only the inputs shown are scored"] = score_split(*train_split(table, chosen, seed), seed)
        with changed(posterior=posterior_without_clamp):
            found["log-variance without limits"] = score_split(*train_split(table, chosen, seed), seed)
        for choice, scores in found.items():
            values.setdefault(choice, []).append([scores[k][metric].value for k in SHOTS])
    print(f"\n{name}, {metric}, {len(seeds)} splits\n")
    print("| shots | " + " | ".join(map(str, SHOTS)) + " |\n|---|" + "---:|" * len(SHOTS))
    ours_values = np.array(values.pop("ours"))
    print("| ours | " + " | ".join(f"{mean:.4f}" for mean in ours_values.mean(0)) + " |")
    for choice, numbers in values.items():
        difference = np.array(numbers) - ours_values
        cells = zip(difference.mean(0), difference.std(0, ddof=1), strict=True)
        print(
            f"| {choice} | " + " | ".join(f"{mean:+.4f} ± {std:.4f}" for mean, std in cells) + " |",
            flush=True,
        )


def measure_left_out(table: Table, chosen: Preset, seeds: tuple[int, ...] = SEEDS) -> None:
    """Print the errors with and without the features of at most 32 observations, at 0 to 4 shots."""
    shots = (0, 1, 4)
    lines: dict[str, list[list[float]]] = {}
    for seed in seeds:
        trained, new = train_split(table, chosen, seed)
        for least in (32, 4):
            kept = new.with_features(np.flatnonzero(new.counts > least))
            scores = score_split(trained, kept, seed, shots)
            for metric in ("rmse", "rmse_per_feature"):
                title = f"{metric}, features of more than {least} observations"
                lines.setdefault(title, []).append([scores[k][metric].value for k in shots])
    print("\n| shots | " + " | ".join(map(str, shots)) + " |\n|---|" + "---:|" * len(shots))
    for title, numbers in lines.items():
        print(f"| {title} | " + " | ".join(f"{value:.4f}" for value in np.mean(numbers, 0)) + " |")


def shorter(chosen: Preset) -> Preset:
    """Return the preset of MovieLens-1M with the training of a table of a twentieth of its size."""
    return chosen.revised(
        pretraining=chosen.pretraining.revised(epochs=50, steps=None, batch_size=128),
        metatraining=chosen.metatraining.revised(epochs=50, steps=None, batch_size=64, learning_rate=1e-3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="the data folder (else HEADSTART_DATA)")
    options = parser.parse_args()
    films, small = movielens_small(), shorter(preset("paper", "movielens"))
    often_rated = films.with_features(np.flatnonzero(films.counts >= 50))
    measure_choices("MovieLens latest-small", often_rated, small, "rmse")
    pain = load_dataset("neuropathic", options.data)
    measure_choices("Neuropathic pain", pain, preset("paper", "neuropathic"), "auroc")
    measure_left_out(films, small)


if __name__ == "__main__":
    main()
