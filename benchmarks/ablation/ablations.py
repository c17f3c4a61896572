"""Vary one part of the paper's method at a time.

    python benchmarks/ablation/ablations.py elearning --splits 0,1,2

Each study changes one thing of the paper's settings; the k-shot test is the same for all variants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ablation.protocol import METRICS, ResultFile, Split, load, measure, preset_of, run_command_line
from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.backbones.base import backbone_config
from headstart.table import Table

BEYOND = (0, 1, 2, 4, 8, 16, 32, 64, 128)  # shots of the study of the range of k

AGGREGATIONS = ("sum", "mean", "max", "attention")

KL_WEIGHTS = (0.0, 0.05, 0.3, 1.0, 3.0)


def settings_of_chn(base: CHNConfig) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the changes to the settings of the hypernetwork, by study and variant."""
    size, layers = base.embedding, base.context_layers

    def sized(factor: float, depth: int = 1) -> dict[str, Any]:
        hidden = tuple(round(factor * layer) for layer in layers) * depth
        return {
            "embedding": round(factor * size),
            "encoding": round(factor * base.encoding),
            "context_layers": hidden,
        }

    return {
        "aggregation": {name: {"aggregation": name} for name in AGGREGATIONS},
        "heads": {"linear": {}, **{f"{units} hidden units": {"head_units": units} for units in (4, 16)}},
        "sizes of f and g": {
            "a quarter": sized(0.25),
            "half": sized(0.5),
            "as in the paper": {},
            "double": sized(2),
            "two hidden layers": sized(1, 2),
        },
    }


@contextmanager
def he_initialisation() -> Iterator[None]:
    """Initialise hypernetworks by He et al. during the block, in place of the defaults of PyTorch."""
    prepare = ContextualHypernetwork.prepare

    @torch.no_grad()
    def initialise(adapter: ContextualHypernetwork) -> None:
        for network in (adapter.f, adapter.g, adapter.h, adapter.net):
            for layer in network or ():
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        prepare(adapter)

    try:
        ContextualHypernetwork.prepare = initialise  # type: ignore[method-assign]
        yield
    finally:
        ContextualHypernetwork.prepare = prepare  # type: ignore[method-assign]


def without_metadata(table: Table) -> Table:
    """Return the table without metadata of features."""
    return replace(table, metadata=None, schema=None)


def run(dataset: str, seed: int, folder: Path) -> None:
    """Run all studies on one split of a data set."""
    table, preset, metric = load(dataset), preset_of(dataset), METRICS[dataset]
    facts = {"dataset": dataset, "metric": metric, "settings": preset.model_dump(mode="json")}

    def results(study: str) -> ResultFile:
        return ResultFile(f"{study.replace(' ', '-')}-{dataset}", {"study": study, **facts})

    def prepared(name: str, table: Table = table, **options: Any) -> Split:
        return Split.prepare(
            table, preset, seed, checkpoint=folder / f"{dataset}-{seed}-{name}.safetensors", **options
        )

    split = prepared("pvae")

    def scored(split: Split, chn: CHNConfig = preset.chn, **options: Any) -> dict[int, float]:
        return split.score(split.train(chn, **options), metric)

    for study, variants in settings_of_chn(preset.chn).items():
        computed = {name: partial(scored, split, preset.chn.revised(**c)) for name, c in variants.items()}
        measure(results(study), seed, computed)

    with he_initialisation():
        measure(
            results("aggregation with He initialisation"),
            seed,
            {name: partial(scored, split, preset.chn.revised(aggregation=name)) for name in AGGREGATIONS},
        )
    measure(
        results("aggregation without weight decay"),
        seed,
        {
            name: partial(scored, split, preset.chn.revised(aggregation=name), changes={"weight_decay": 0.0})
            for name in AGGREGATIONS
        },
    )
    chn, plain = preset.chn, {"weight_decay": 0.0}
    two_layers = settings_of_chn(chn)["sizes of f and g"]["two hidden layers"]
    measure(
        results("settings without weight decay"),
        seed,
        {
            "as in the paper": partial(scored, split, chn, changes=plain),
            "16 hidden units": partial(scored, split, chn.revised(head_units=16), changes=plain),
            "two hidden layers": partial(scored, split, chn.revised(**two_layers), changes=plain),
            "shots from 0 to 8": partial(
                scored, split, chn.revised(max_shots=8), changes={**plain, "max_shots": 8}
            ),
        },
    )
    count = len(split.trainer.training)
    counts = sorted({count, *(n for n in (24, 48, 96, 192, 384, 768) if n < count)})
    measure(
        results("meta-training features"),
        seed,
        {str(n): partial(scored, split, features=n) for n in counts},
    )

    beyond = prepared("pvae", shots=BEYOND)
    measure(
        results("range of k"),
        seed,
        {
            f"0 to {most}": partial(
                scored, beyond, preset.chn.revised(max_shots=most), changes={"max_shots": most}
            )
            for most in (8, 16, 32, 64)
        },
    )
    if table.metadata is not None:
        bare = without_metadata(table)
        measure(
            results("metadata"),
            seed,
            {
                "with": lambda: scored(split),
                "without": lambda: scored(prepared("pvae", bare)),
            },
        )
    measure(
        results("KL weight"),
        seed,
        {
            f"{weight:g}": lambda weight=weight: scored(
                prepared(f"pvae-{weight:g}", backbone=preset.backbone.revised(kl_weight=weight))
            )
            for weight in KL_WEIGHTS
        },
    )
    for study, changes in (
        ("backbone", {}),
        ("backbone without weight decay", {"weight_decay": 0.0}),
    ):
        measure(
            results(study),
            seed,
            {
                name: lambda name=name, changes=changes: scored(
                    prepared(name, backbone=None if name == "pvae" else backbone_config(name)),
                    changes=changes,
                )
                for name in ("pvae", "feedforward", "factorisation")
            },
        )


def main() -> None:
    """Run the ablations of the data sets and splits on the command line."""
    run_command_line(__doc__, run)


if __name__ == "__main__":
    main()
