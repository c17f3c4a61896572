"""Compare the hypernetwork with later methods, on the paper's P-VAE and the same contexts.

    python benchmarks/ablation/compare_rivals.py elearning --splits 0,1,2

All methods have the same meta-training, which stops early on meta-training features held out from it. So each
method is trained as long as it improves.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ablation.protocol import (
    METRICS,
    STOPPED_EARLY,
    ResultFile,
    Split,
    load,
    measure,
    preset_of,
    run_command_line,
)
from ablation.rivals import register_rivals
from headstart.adapters.base import AdapterConfig, adapter_config

RIVALS = ("mean-head", "knn-10", "cnp", "anp", "dropoutnet", "mwuf")


def run(dataset: str, seed: int, folder: Path) -> None:
    """Compare all methods on one split."""
    table, preset, metric = load(dataset), preset_of(dataset), METRICS[dataset]
    training = STOPPED_EARLY
    split = Split.prepare(
        table,
        preset,
        seed,
        metatraining=training,
        checkpoint=folder / f"{dataset}-{seed}-pvae.safetensors",
    )
    methods: dict[str, AdapterConfig] = {
        f"CHN, {name}": preset.chn.revised(aggregation=name) for name in ("sum", "mean", "max", "attention")
    }
    methods |= {name: adapter_config(name, seed) for name in RIVALS}
    facts = {"dataset": dataset, "metric": metric, "study": "rivals"}
    settings = {"preset": preset.model_dump(mode="json"), "training": training.model_dump(mode="json")}
    results = ResultFile(f"rivals-{dataset}", {**facts, "settings": settings})

    def scored(config: AdapterConfig) -> dict[int, float]:
        return split.score(split.train(config), metric)

    measure(results, seed, {name: partial(scored, config) for name, config in methods.items()})


def main() -> None:
    """Compare on the data sets and splits on the command line."""
    register_rivals()
    run_command_line(__doc__, run)


if __name__ == "__main__":
    main()
