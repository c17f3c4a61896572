"""Measure an epoch of pretraining and of meta-training, compared with a dense version and bare GEMMs.

The table has the shape of MovieLens-1M: 6,040 rows × 3,706 features, and a million ratings of 1 to 5 with the
same skew. 60 % of the features train the backbone, 30 % the hypernetwork.

- "dense" is the usual implementation: (batch × features × dims) tensors, with rows encoded again in every
  step. It is timed on a few batches and scaled up to the epoch.
- "GEMMs" are only the matrix products that every implementation needs: those of encoder, shared decoder and
  heads, forward and backward.

All are timed alternately in one run, and the medians are printed: compare the ratios.

    python benchmarks/epochs.py            # add --quick for a smaller table
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from epochs_beside import DensePVAE, dense_meta_batches, dense_pvae_batches, meta_gemms, pvae_gemms, step
from headstart.adapters import build_adapter
from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.backbones.base import value_grid
from headstart.backbones.pvae import PVAE, PVAEConfig
from headstart.core.types import FeatureBatch, Knowledge
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.episodes import draw_episode, draw_shots, episode_loss

PAPER = PVAEConfig(
    embedding=50,
    set_size=30,
    pooling="sum",
    encoder_layers=(200,),
    latent=150,
    decoder_layers=(200,),
    kl_weight=1.0,
)
PAPER_CHN = CHNConfig(metadata_encoding=5, metadata_layers=(10,), parameter_layers=(256, 256, 256))


def ratings(rows: int, features: int, observations: int) -> Cells:
    """Draw random ratings with a long tail of features and of rows, as in MovieLens-1M."""
    generator = torch.Generator().manual_seed(0)
    popularity = torch.arange(1, features + 1).double().pow(-0.8)
    activity = torch.arange(1, rows + 1).double().pow(-0.5)
    draw = int(observations * 1.6)
    pairs = torch.multinomial(activity, draw, True, generator=generator) * features
    pairs += torch.multinomial(popularity, draw, True, generator=generator)
    pairs = pairs.unique()
    pairs = pairs[torch.randperm(len(pairs), generator=generator)[:observations]]
    values = torch.randint(5, (len(pairs),), generator=generator) / 4
    return Cells.from_pairs(pairs // features, pairs % features, values, rows, features)


def pvae_epoch(cells: Cells, model: PVAE, batch: int) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)

    def epoch() -> None:
        for rows in torch.randperm(len(cells), generator=generator).split(batch):
            step(optimizer, model.loss(cells.take(rows), generator))

    return epoch


def meta_epoch(tasks: FeatureBatch, adapter: ContextualHypernetwork, batch: int) -> Callable[[], None]:
    knowledge = adapter.knowledge
    optimizer = torch.optim.Adam(adapter.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)

    def epoch() -> None:
        for features in torch.randperm(len(tasks), generator=generator).split(batch):
            part = tasks.take(features)
            shots = draw_shots(part, 32, generator)
            episode = draw_episode(part, knowledge.states, shots, generator)
            step(optimizer, episode_loss(adapter, knowledge.likelihood, episode))

    return epoch


def seconds(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(title: str, works: dict[str, tuple[Callable[[], None], float]], rounds: int) -> dict[str, object]:
    """Run all ``works`` in turn for several rounds; each has a factor that scales it up to an epoch."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, (work, scale) in works.items():
            duration = seconds(work) * scale
            if turn > 0:  # the first round warms up
                times[name].append(duration)
    medians = {name: statistics.median(durations) for name, durations in times.items()}
    faster, against = medians["dense"] / medians["headstart"], medians["headstart"] / medians["GEMMs"]
    print(f"{title:<34}" + "  ".join(f"{name} {value:8.3f} s" for name, value in medians.items()), end="")
    print(f"   {faster:6.1f}× faster than dense, {against:4.1f}× the GEMMs", flush=True)
    return {"title": title, "seconds": medians, "faster_than_dense": faster, "over_gemms": against}


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def peak_of_defaults(known: Cells, kinds: Tensor, tasks: FeatureBatch) -> float:
    """Return the peak memory of one epoch of each stage with the defaults, before anything else runs."""
    model = PVAE(PVAEConfig(), kinds, value_grid(known))
    pvae_epoch(known, model, 256)()
    metadata = torch.rand(len(kinds), 19)
    knowledge = Knowledge(model.states(known), known, model.heads.detach(), metadata, kinds, model.likelihood)
    meta_epoch(tasks, build_adapter(CHNConfig(), knowledge), 64)()
    return peak_gib()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the numbers to this file")
    options = parser.parse_args()
    rows, features, count = (1510, 1200, 100_000) if options.quick else (6040, 3706, 1_000_209)
    cells = ratings(rows, features, count)
    order = torch.randperm(features, generator=torch.Generator().manual_seed(1))
    by_feature = cells.transpose()
    trained = order[: int(0.6 * features)]
    meta_trained = order[int(0.6 * features) : int(0.9 * features)]
    known = by_feature.take(trained).transpose()
    comparisons: list[dict[str, object]] = []
    kinds = torch.full((len(trained),), KindType.RATING)
    tasks = FeatureBatch(
        by_feature.take(meta_trained),
        torch.rand(len(meta_trained), 19),
        torch.full((len(meta_trained),), KindType.RATING),
    )
    default_peak = peak_of_defaults(known, kinds, tasks)
    presets = (("defaults", PVAEConfig(), 256, CHNConfig(), 64), ("paper", PAPER, 1000, PAPER_CHN, 256))
    for title, config, batch, chn, size in presets:
        model, other = (PVAE(config, kinds, value_grid(known)) for _ in range(2))
        works = {
            "headstart": (pvae_epoch(known, model, batch), 1.0),
            "GEMMs": (pvae_gemms(known, config, batch), 1.0),
            "dense": (dense_pvae_batches(known, DensePVAE(other), batch, 1), rows / batch),
        }
        comparisons.append(compare(f"pretraining, {title}", works, options.rounds))
        metadata = torch.rand(len(trained), 19)
        knowledge = Knowledge(
            model.states(known), known, model.heads.detach(), metadata, kinds, model.likelihood
        )
        adapter, twin = (build_adapter(chn, knowledge) for _ in range(2))
        works = {
            "headstart": (meta_epoch(tasks, adapter, size), 1.0),
            "GEMMs": (meta_gemms(tasks, adapter, size), 1.0),
            "dense": (dense_meta_batches(tasks, twin, DensePVAE(model), known, size), len(tasks) / size),
        }
        comparisons.append(compare(f"meta-training, {title}", works, options.rounds))
    print(f"peak memory: {default_peak:.1f} GiB before any dense version ran, {peak_gib():.1f} GiB with them")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "comparisons": comparisons,
                    "peak_gib": default_peak,
                    "peak_with_dense_gib": peak_gib(),
                    "threads": torch.get_num_threads(),
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
