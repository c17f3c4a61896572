"""One epoch of pretraining and of meta-training, beside a plain dense version and the bare GEMMs.

The table has the shape of MovieLens-1M (6,040 rows × 3,706 features, a million ratings of 1 to 5, as
skewed): 60 % of the features train the backbone, 30 % the hypernetwork.

- "dense" is how such models are commonly written: (batch × features × dims) tensors, rows encoded anew
  in every step. It is timed on a few batches and scaled up to the epoch.
- "GEMMs" are only the matrix products that any implementation needs: the encoder's, the shared
  decoder's and the heads', there and back.

Everything is timed in one run, alternating, and the median is reported: compare the ratios.

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

from epochs_beside import (
    DensePVAE,
    dense_meta_batches,
    dense_pvae_batches,
    meta_gemms,
    pvae_gemms,
    step,
)
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
    """Random ratings with a long tail of features and of rows, as in MovieLens-1M."""
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
    """Run each work in turn, several rounds; the number beside each scales it up to an epoch."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, (work, scale) in works.items():
            taken = seconds(work) * scale
            if turn > 0:  # the first round warms up
                times[name].append(taken)
    middle = {name: statistics.median(each) for name, each in times.items()}
    faster, against = middle["dense"] / middle["headstart"], middle["headstart"] / middle["GEMMs"]
    print(f"{title:<34}" + "  ".join(f"{name} {value:8.3f} s" for name, value in middle.items()), end="")
    print(f"   {faster:6.1f}× faster than dense, {against:4.1f}× the GEMMs", flush=True)
    return {"title": title, "seconds": middle, "faster_than_dense": faster, "over_gemms": against}


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def own_peak(known: Cells, kinds: Tensor, tasks: FeatureBatch) -> float:
    """Peak memory of an epoch of each stage with the defaults, while nothing else has run yet."""
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
    met = order[int(0.6 * features) : int(0.9 * features)]
    known = by_feature.take(trained).transpose()
    found: list[dict[str, object]] = []
    kinds = torch.full((len(trained),), KindType.RATING)
    tasks = FeatureBatch(
        by_feature.take(met), torch.rand(len(met), 19), torch.full((len(met),), KindType.RATING)
    )
    own = own_peak(known, kinds, tasks)
    presets = (("defaults", PVAEConfig(), 256, CHNConfig(), 64), ("paper", PAPER, 1000, PAPER_CHN, 256))
    for title, config, batch, chn, size in presets:
        model, other = (PVAE(config, kinds, value_grid(known)) for _ in range(2))
        works = {
            "headstart": (pvae_epoch(known, model, batch), 1.0),
            "GEMMs": (pvae_gemms(known, config, batch), 1.0),
            "dense": (dense_pvae_batches(known, DensePVAE(other), batch, 1), rows / batch),
        }
        found.append(compare(f"pretraining, {title}", works, options.rounds))
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
        found.append(compare(f"meta-training, {title}", works, options.rounds))
    print(f"peak memory: {own:.1f} GiB before any dense version ran, {peak_gib():.1f} GiB with them")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "comparisons": found,
                    "peak_gib": own,
                    "peak_with_dense_gib": peak_gib(),
                    "threads": torch.get_num_threads(),
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
