"""The command that measures choices that the paper leaves open, on a small table with short training."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from headstart.backbones.pvae import PVAE
from headstart.datasets import synthetic_ratings
from headstart.experiments.presets import preset
from open_choices import SHOTS, measure_choices, measure_left_out


def numbers(line: str) -> list[float]:
    return [float(cell.split("±")[0]) for cell in line.strip("| \n").split("|")[1:]]


def test_each_choice_is_compared_with_ours_on_the_same_splits(capsys):
    table, chosen = synthetic_ratings(150, 60, 0.6), preset("paper", "movielens").quick()
    methods = PVAE.loss, PVAE.posterior
    measure_choices("ratings", table, chosen, "rmse", seeds=(100, 101))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert numbers(lines[0]) == list(SHOTS)
    assert all(0.5 < error < 2 for error in numbers(lines[1]))
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "predictions averaged over 20 codes",
        "only the inputs shown are scored",
        "log-variance without limits",
    ]
    assert any(numbers(lines[3]))  # another training, other numbers
    assert (PVAE.loss, PVAE.posterior) == methods


def test_features_with_few_observations_can_be_left_out(capsys):
    table, chosen = synthetic_ratings(60, 60, 0.55), preset("paper", "movielens").quick()
    measure_left_out(table, chosen, seeds=(100,))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(lines) == 5
    assert all(0.5 < error < 2.5 for line in lines[1:] for error in numbers(line))
