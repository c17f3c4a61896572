"""Compare observations at rows that ``suggest`` returns with observations at random rows.

    python benchmarks/suggesting.py --data /path/to/data --set movielens --splits 3 --out suggested

New features are held out from the fit. Half of the observations of a new feature are its targets, the same
for both methods. Of the other half, k are revealed: the first k in a random order, or the first k that
``model.suggest`` chooses from this half. Written: ``suggesting-SET.json`` and ``.png``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from headstart import Headstart, Table
from headstart.datasets.public import load_dataset
from headstart.evaluate.metrics import score
from headstart.evaluate.plots import plot_kshot
from headstart.evaluate.results import Results, Run
from headstart.evaluate.scoring import runs_of
from headstart.evaluate.splits import split_features

SHOTS = (0, 1, 2, 4, 8, 16, 32)
TEST_SHARE = {"neuropathic": 0.2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder of the data sets, else HEADSTART_DATA")
    parser.add_argument("--set", default="movielens", choices=("movielens", "elearning", "neuropathic"))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = load_dataset(options.set, options.data)
    runs = [run for seed in range(options.splits) for run in score_split(table, options.set, seed)]
    data = {"name": options.set, "rows": len(table.rows), "features": len(table.features)}
    results = Results(data=data, settings={"methods": ["suggested", "random"]}, runs=runs)
    metric = "rmse" if "rmse" in results.metrics else "auroc"
    results.save(options.out / f"suggesting-{options.set}.json")
    (options.out / f"suggesting-{options.set}.png").write_bytes(plot_kshot(results, [metric]))
    print(results.to_markdown())


def score_split(table: Table, name: str, seed: int) -> list[Run]:
    split = split_features(table, TEST_SHARE.get(name, 0.1), seed=seed)
    new = table.with_features(split.meta_test)
    model = Headstart(random_state=seed).fit(table.without_features(new.features))
    random = np.random.default_rng(seed)
    asked: dict[str, dict[str, list[str]]] = {"suggested": {}, "random": {}}
    targets: dict[str, dict[str, float]] = {}
    for feature in new.features:
        observations = new.observations_of(feature)
        rows = [str(row) for row in random.permutation(list(observations))]
        pool, rest = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        if len(pool) < 2 * SHOTS[-1]:  # with fewer there is little to choose from
            continue
        targets[feature] = {row: observations[row] for row in rest}
        asked["random"][feature] = pool[: SHOTS[-1]]
        model.add_feature(feature, metadata=_metadata(new, feature))
        asked["suggested"][feature] = model.suggest(feature, SHOTS[-1], pool)
        model.remove_feature(feature)
    return [
        run
        for method, order in asked.items()
        for shots in SHOTS
        for run in _score(model, new, order, targets, method, shots, seed)
    ]


def _score(
    model: Headstart,
    new: Table,
    order: dict[str, list[str]],
    targets: dict[str, dict[str, float]],
    method: str,
    shots: int,
    seed: int,
) -> list[Run]:
    observations = {feature: new.observations_of(feature) for feature in order}
    model.add_features(
        {
            feature: {
                "metadata": _metadata(new, feature),
                "observations": {row: observations[feature][row] for row in rows[:shots]},
                "kind": new.kinds[new.features.position(feature)],
            }
            for feature, rows in order.items()
        }
    )
    means, truths, lines = [], [], []
    for line, feature in enumerate(order):
        rows = list(targets[feature])
        means.append(model.predict(rows, [feature]).mean[:, 0])
        truths.append(np.array(list(targets[feature].values())))
        lines.append(np.full(len(rows), line))
        model.remove_feature(feature)
    line = np.concatenate(lines)
    kinds = new.kinds.types[new.features.positions(list(order))][line]
    scores = score(np.concatenate(truths), np.concatenate(means), line, kinds)
    return runs_of(scores, seed, method, shots)


def _metadata(table: Table, feature: str) -> dict[str, object]:
    if table.metadata is None:
        return {}
    line: dict[str, object] = table.metadata.slice(table.features.position(feature), 1).to_pylist()[0]
    return line


if __name__ == "__main__":
    main()
