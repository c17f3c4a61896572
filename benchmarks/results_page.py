"""Make the tables and pictures of ``docs/results.md`` from the numbers in ``benchmarks/results``.

    python benchmarks/results_page.py                  # write the tables and pictures
    python benchmarks/results_page.py --collect OUT    # first take over the finished splits in OUT

``OUT`` is a folder of ``headstart reproduce all`` or of ``benchmarks/peers/run.py``. A file of
``benchmarks/results`` has the numbers of one study and one split; methods in ``OUT`` replace those of the
same name in it. Each table of the page stands between two comments with its name.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headstart.evaluate.metrics import METRICS
from headstart.evaluate.plots import LIGHT, Panel, Style, plot_panels, styles_of
from headstart.evaluate.results import Curve, Results, Run, TextTable, metric_table
from headstart.experiments.presets import EPOCHS, EXPERIMENTS, MAML_EPOCHS, NEIGHBOURS
from headstart.experiments.reproduce import PAPER_RATIOS, best_method, main_metric, versions
from headstart.files import read_json, write_bytes, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
PICTURES = ROOT / "docs" / "images" / "results"

COLUMNS = ("part", "method", "shots", "metric", "value", "features", "targets")
STUDIES = {
    "movielens": "MovieLens-1M",
    "neuropathic": "Neuropathic pain (rebuilt simulator)",
    "elearning": "Eedi, tasks 3/4 (subset)",
}
DEFAULT, CHN = "headstart", "chn"
TEXTS, SUBJECTS = "headstart, texts and subjects", "headstart, subjects"
SMALLER = "maml-smaller-steps"  # the preset of benchmarks/maml-smaller-steps.toml
EARLIER = "headstart (earlier)"
PEERS = (
    "headstart",
    EARLIER,
    "vbmf",
    "als",
    "item-knn",
    "ease",
    "biases",
    "irt",
    "implicit-als",
    "lightfm",
    "lightgbm",
    "dropoutnet",
    "iterative-imputer",
    "mice-like",
    "myfm",
)
_DASHED = (4, 1.2)  # of libraries, networks and trees
PEER_STYLES = {
    "vbmf": Style("#0072B2", "s", ()),
    "als": Style("#56B4E9", "o", ()),
    "item-knn": Style("#009E73", "v", ()),
    "ease": Style("#7FA000", "P", ()),
    "biases": Style("#7F7F7F", "^", ()),
    "irt": Style("#A6761D", "D", ()),
    "implicit-als": Style("#E69F00", "o", _DASHED),
    "lightfm": Style("#CC79A7", "P", _DASHED),
    "lightgbm": Style("#882255", "X", _DASHED),
    "dropoutnet": Style("#6A3D9A", "D", _DASHED),
    "iterative-imputer": Style("#B2182B", "<", _DASHED),
    "mice-like": Style("#B2182B", ">", (1.2, 1.2)),
}
# One style per method of the paper in all pictures; of a family, method-10 is solid.
_PAPER_METHODS = {
    method
    for experiment in EXPERIMENTS.values()
    for methods in experiment.all_methods.values()
    for method in methods
}
PAPER_STYLES = styles_of(
    sorted(_PAPER_METHODS, key=lambda method: (not method.endswith("-10"), method)), LIGHT
)
_SHOT_COLOURS = ("#B8B8B8", "#9ECAE1", "#6BAED6", "#3182BD", "#08519C", "#08224F")  # from few to many
_SHOT_MARKERS = ("o", "s", "v", "P", "^", "D")


# -- the files ----------------------------------------------------------------------------------------


def collect(out: Path, results: Path) -> list[Path]:
    """Write the finished splits of ``out`` to ``results``, and return the files."""
    if (out / "studies").is_dir():
        return _collect_reproduction(out, results)
    return _collect_peers(out, results)


def _collect_reproduction(out: Path, results: Path) -> list[Path]:
    facts = read_json(out / "experiment.json")
    group, seed = results / facts["preset"], facts.get("seed", 0)
    files = []
    for study in sorted((out / "studies").iterdir()):
        for path in sorted(study.glob("splits/*.json")):
            outcome = read_json(path)
            outcome["split"] += seed  # the number of a file is the seed of its split
            lines = [_line(32, run) for run in outcome["runs"]]
            for timing in outcome["timings"]:
                sizes = {"features": outcome["facts"]["tested"], "targets": 0}
                for metric, key in (("ms", "ms_per_feature"), ("ms_fastest", "low"), ("ms_slowest", "high")):
                    lines.append(_line(32, {**timing, **sizes, "metric": metric, "value": timing[key]}))
            files.append(_merge(group / study.name / f"split-{outcome['split']}.csv", lines))
            _merge_facts(group / study.name / "study.json", study, outcome)
    return files


def _merge_facts(path: Path, study: Path, outcome: dict[str, Any]) -> None:
    """Store the facts of a study: its table, its splits, the settings of its methods and the versions."""
    facts = read_json(path) if path.exists() else {"table": {}, "splits": {}, "used": {}}
    if (study / "results.json").exists():
        data = read_json(study / "results.json")["data"]
        facts["table"] = {key: value for key, value in data.items() if key != "splits"}
    facts["splits"][str(outcome["split"])] = outcome["facts"]
    facts["splits"] = dict(sorted(facts["splits"].items()))
    if outcome["split"] == 0:
        facts["used"] |= outcome["used"]
    facts["versions"] = versions()
    write_json(path, facts)


def _collect_peers(out: Path, results: Path) -> list[Path]:
    files = []
    for path in sorted(out.glob("*/*/split-*.json")):
        record = read_json(path)
        lines = []
        for part, runs in record["parts"].items():
            lines += [_line(int(part), run) for run in runs]
            times = {run["shots"]: {**run, "metric": "ms", "value": run["ms_per_feature"]} for run in runs}
            lines += [_line(int(part), run) for run in times.values()]
        fit = {"method": record["method"], "shots": 0, "metric": "fit_seconds", "features": 0, "targets": 0}
        lines.append(_line(32, {**fit, "value": record["fit_seconds"]}))
        folder = results / "peers" / record["set"]
        files.append(_merge(folder / path.with_suffix(".csv").name, lines))
        used = read_json(folder / "settings.json") if (folder / "settings.json").exists() else {}
        write_json(folder / "settings.json", {**used, record["method"]: record["settings"]})
    return files


def _line(part: int, run: dict[str, Any]) -> dict[str, Any]:
    return {**{name: run[name] for name in COLUMNS[1:]}, "part": part, "value": float(f"{run['value']:.6g}")}


def _merge(path: Path, lines: list[dict[str, Any]]) -> Path:
    """Write lines to a file, in place of its lines of the same methods."""
    methods = {line["method"] for line in lines}
    kept = [line for line in read_lines(path) if line["method"] not in methods] if path.exists() else []
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*kept, *lines])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.getvalue().encode())
    return path


def read_lines(path: Path) -> list[dict[str, str]]:
    """Read the lines of a file of results."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def load(folder: Path, part: int = 32) -> Results:
    """Load all splits of a study; only the targets after ``part`` observations."""
    runs = []
    for path in sorted(folder.glob("split-*.csv")):
        split = int(path.stem.removeprefix("split-"))
        runs += [
            Run(
                split=split,
                method=line["method"],
                shots=int(line["shots"]),
                metric=line["metric"],
                value=float(line["value"]),
                features=int(line["features"]),
                targets=int(line["targets"]),
            )
            for line in read_lines(path)
            if int(line["part"]) == part
        ]
    return Results(data={}, settings={}, runs=runs)


# -- tables -------------------------------------------------------------------------------------------

Values = dict[tuple[str, int], dict[int, float]]  # by method and shots: the value of each split


def values_of(results: Results, metric: str) -> Values:
    """Return the values of a metric by method, shots and split."""
    values: Values = {}
    for run in results.runs:
        if run.metric == metric and run.shots is not None:
            values.setdefault((run.method, run.shots), {})[run.split] = run.value
    return values


def select(results: Results, methods: Sequence[str], shots: Iterable[int] | None = None) -> Results:
    """Return the results of some methods, in this order."""
    wanted = set(results.shots if shots is None else shots)
    runs = [run for run in results.runs if run.method in methods and run.shots in wanted]
    return Results.from_splits({}, {"methods": list(methods)}, [runs])


def score_table(results: Results, metric: str, methods: Sequence[str], **options: Any) -> str:
    """Return the table of a metric: mean ± 1σ over splits, the best mean of the methods with all splits bold.

    A method with fewer splits than the others has their number behind its name.
    """
    chosen = select(results, methods, **options)
    splits = {m: len({run.split for run in chosen.runs if run.method == m}) for m in chosen.methods}
    complete = [method for method in splits if splits[method] == chosen.splits]
    table = metric_table(chosen, metric)
    best = metric_table(select(chosen, complete), metric).best
    names = {method: _label(method, splits[method], chosen.splits) for method in table.cells}
    return replace(
        table,
        best={k: names[method] for k, method in best.items()},
        cells={names[method]: texts for method, texts in table.cells.items()},
    ).to_markdown()


def _label(method: str, splits: int, most: int) -> str:
    return method if splits == most else f"{method} ({splits} split{'s' * (splits != 1)})"


def lead_table(
    results: Results, metric: str, of: str, over: Sequence[str], digits: int = 3, **options: Any
) -> str:
    """Return by how much a method is better than others: mean ± 1σ of the differences within splits.

    Bold: better in every split; italic: worse in every split.
    """
    chosen = select(results, (of, *over), **options)
    values, shots = values_of(chosen, metric), chosen.shots
    cells = {}
    for method in over:
        texts, counted = [], 0
        for k in shots:
            leads = _leads(values, metric, of, method, k)
            counted = max(counted, len(leads))
            texts.append(_lead_text(leads, digits))
        cells[_label(method, counted, chosen.splits)] = texts
    return TextTable("", shots, cells, {}, corner=f"{of} ahead of").to_markdown()


def _leads(values: Values, metric: str, of: str, over: str, shots: int) -> np.ndarray[Any, Any]:
    """Return by how much a method is better than another in each split that both have."""
    mine, other = values.get((of, shots), {}), values.get((over, shots), {})
    sign = 1 if METRICS[metric].better == "lower" else -1
    return np.array([sign * (other[split] - mine[split]) for split in sorted(mine.keys() & other)])


def _lead_text(leads: np.ndarray[Any, Any], digits: int = 3) -> str:
    if len(leads) == 0:
        return ""
    text = f"{leads.mean():+.{digits}f}"
    text += f" ± {leads.std(ddof=1):.{digits}f}" if len(leads) > 1 else ""
    mark = "" if len(leads) == 1 else "**" if (leads > 0).all() else "*" if (leads < 0).all() else ""
    return f"{mark}{text}{mark}"


def time_table(results: Results, methods: Sequence[str], shots: Sequence[int]) -> str:
    """Return milliseconds per feature: mean ± 1σ over splits of the median of five rounds."""
    values = values_of(results, "ms")
    cells = {method: [_spread(values[method, k].values(), 4) for k in shots] for method in methods}
    return TextTable("", list(shots), cells, {}).to_markdown()


def ratio_table(results: Results, methods: Sequence[str], shots: Sequence[int], to: str = CHN) -> str:
    """Return the times of methods divided by those of ``to`` in the same split, beside the paper's."""
    values, cells = values_of(results, "ms"), {}
    for method in methods:
        cells[method] = [
            _spread([ms / values[to, k][split] for split, ms in values[method, k].items()], 1) for k in shots
        ]
        if method in PAPER_RATIOS:
            cells[f"{method}, the paper"] = [f"{ratio:.1f}" for ratio in PAPER_RATIOS[method]]
    growth = [values[to, shots[-1]][s] / ms for s, ms in values[to, shots[0]].items()]
    cells[f"{to}, {shots[-1]} shots / {shots[0]} shot"] = [_spread(growth, 2)] + [""] * (len(shots) - 1)
    return TextTable("", list(shots), cells, {}, corner=f"time / time of {to}").to_markdown()


def _spread(numbers: Iterable[float], digits: int) -> str:
    array = np.array(list(numbers))
    return f"{array.mean():.{digits}f}" + (f" ± {array.std(ddof=1):.{digits}f}" if len(array) > 1 else "")


def data_table(results: Path, group: str = "paper") -> str:
    """Return the sizes of the tables and of the parts of split 0."""
    lines = [
        "| | rows × features | observations | observed | train, meta-train, meta-test | tested | left out "
        "| splits |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for study, title in STUDIES.items():
        facts = read_json(results / group / study / "study.json")
        table, split = facts["table"], facts["splits"]["0"]
        parts = ", ".join(str(split[name]) for name in ("train", "meta_train", "meta_test"))
        lines.append(
            f"| {title} | {table['rows']:,} × {table['features']:,} | {table['observations']:,} "
            f"| {100 * table['density']:.1f} % | {parts} | {split['tested']} | {split['left_out']} "
            f"| {len(facts['splits'])} |"
        )
    return "\n".join(lines)


def peer_table(results: Path, study: str, metric: str, part: int, methods: Sequence[str] = PEERS) -> str:
    """Return the means of ``methods`` to four digits, and the lead of the default over the best other method.

    The lead is a mean ± 1σ of the differences within splits, with the marks of ``lead_table``.
    """
    means, splits = peer_means(results, study, metric, part)
    values = values_of(load(results / "peers" / study, part), metric)
    shots = sorted({k for _, k in means})
    full = [method for method in PEERS if splits.get(method) == max(splits.values())]
    best: dict[int, str] = {}
    leads: list[str] = []
    for k in shots:
        here = [method for method in full if (method, k) in means]
        best[k] = _best(means, metric, here, k)
        rival = _best(means, metric, [method for method in here if not method.startswith(DEFAULT)], k)
        within = _leads(values, metric, DEFAULT, rival, k)
        sign = 1 if METRICS[metric].better == "lower" else -1
        of_means = np.array([sign * (means[rival, k] - means[DEFAULT, k])])
        leads.append(f"{_lead_text(within if len(within) else of_means, 4)} {rival}")
    cells: dict[str, list[str]] = {}
    for method in [method for method in methods if method in splits]:
        texts = [f"{means[method, k]:.4f}" if (method, k) in means else "" for k in shots]
        cells[_label(method, splits[method], max(splits.values()))] = texts
    return TextTable("", shots, {**cells, f"{DEFAULT} ahead of the best": leads}, best).to_markdown()


def _best(means: dict[tuple[str, int], float], metric: str, methods: Sequence[str], shots: int) -> str:
    return methods[METRICS[metric].best(np.array([means[method, shots] for method in methods]))]


def peer_means(
    results: Path, study: str, metric: str, part: int
) -> tuple[dict[tuple[str, int], float], dict[str, int]]:
    """Return means over splits by method and shots, and the number of splits by method.

    Methods that have not been run again have the means of ``earlier.csv``, on the same splits and targets.
    """
    means: dict[tuple[str, int], float] = {}
    splits: dict[str, int] = {}
    for line in read_lines(results / "peers" / "earlier.csv"):
        if (line["set"], line["metric"], int(line["part"])) == (study, metric, part):
            means[line["method"], int(line["shots"])] = float(line["value"])
            splits[line["method"]] = int(line["splits"])
    for (method, shots), by_split in values_of(load(results / "peers" / study, part), metric).items():
        means[method, shots] = float(np.mean(list(by_split.values())))
        splits[method] = len(by_split)
    return means, splits


def peer_lead_table(results: Path, study: str, metric: str, part: int) -> str:
    """Return the lead of the default over each of the other methods, mean ± 1σ over splits."""
    runs = load(results / "peers" / study, part)
    over = [method for method in PEERS if method in runs.methods and method != DEFAULT]
    return lead_table(runs, metric, DEFAULT, over, digits=4)


def peer_heat_map(results: Path, part: int = 32) -> bytes:
    """Plot the lead of the default over each other method by data set and shots, as a PNG picture.

    A cell is the share of the other method's error that the default removes, in percent; the error is
    the RMSE or 1 - AUROC.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    leads: dict[str, np.ndarray[Any, Any]] = {}
    shots: list[int] = []
    for study in STUDIES:
        metric = main_metric(load(results / "peers" / study))
        means, splits = peer_means(results, study, metric, part)
        shots = sorted(k for method, k in means if method == DEFAULT)
        better = METRICS[metric].better
        errors = {key: mean if better == "lower" else 1 - mean for key, mean in means.items()}
        methods = [m for m in PEERS if splits.get(m) == max(splits.values()) and not m.startswith(DEFAULT)]
        for method in methods:
            line = leads.setdefault(method, np.full((len(STUDIES), len(shots)), np.nan))
            for i, k in enumerate(shots):
                if (method, k) in errors:
                    lead = 1 - errors[DEFAULT, k] / errors[method, k]
                    line[list(STUDIES).index(study), i] = 100 * lead
    order = sorted(leads, key=lambda method: float(np.nanmean(leads[method])))
    limit = 10.0  # percent at which the colours end
    colours = LinearSegmentedColormap.from_list("lead", ["#B35806", "#FFFFFF", "#2166AC"]).with_extremes(
        bad="#eeeeee"
    )
    figure, axes = plt.subplots(
        1, len(STUDIES), figsize=(10, 1.4 + 0.32 * len(order)), sharey=True, layout="constrained"
    )
    for i, (title, panel) in enumerate(zip(STUDIES.values(), axes, strict=True)):
        cells = np.array([leads[method][i] for method in order])
        image = panel.imshow(cells, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
        panel.set_title(title, fontsize=11)
        panel.set_xticks(range(len(shots)), [str(k) for k in shots])
        panel.set_yticks(range(len(order)), order)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
        for (y, x), value in np.ndenumerate(cells):
            if np.isfinite(value):
                colour = "white" if abs(value) > 0.7 * limit else "#222222"
                panel.text(x, y, _percent(value), ha="center", va="center", fontsize=9, color=colour)
    axes[len(STUDIES) // 2].set_xlabel("shots: observations of the new feature")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01, extend="both")
    bar.set_label("% of the method's error that Headstart removes", fontsize=9)
    bar.outline.set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    return file.getvalue()


def _percent(value: float) -> str:
    """Return a share in percent with one digit below 10 and without above.

    >>> _percent(3.14), _percent(-12.6), _percent(0.04)
    ('3.1', '−13', '0.0')
    """
    text = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return text.replace("-0.0", "0.0").replace("-", "−")


def peer_times(results: Path, sets: Sequence[str]) -> str:
    """Return seconds to fit and milliseconds per new feature with 128 observations, means over splits."""
    lines = [
        "| | " + " | ".join(f"{STUDIES[name]}: fit, s | ms per feature" for name in sets) + " |",
        "|---|" + "---:|---:|" * len(sets),
    ]
    times: dict[str, list[str]] = {}
    for name in sets:
        fit = values_of(load(results / "peers" / name, 32), "fit_seconds")
        adapt = values_of(load(results / "peers" / name, 128), "ms")
        for method in PEERS:
            found = [fit.get((method, 0)), adapt.get((method, 128))]
            texts = ["" if by_split is None else f"{np.mean([*by_split.values()]):.3g}" for by_split in found]
            times.setdefault(method, []).extend(texts)
    lines += [f"| {method} | " + " | ".join(texts) + " |" for method, texts in times.items() if any(texts)]
    return "\n".join(lines)


def peer_others(results: Path, study: str, metric: str) -> str:
    """Return the default's means and its lead over the best: averaged over features, and after 128."""
    parts = {"after 32, averaged over features": (f"{metric}_per_feature", 32), "after 128": (metric, 128)}
    return stacked(
        {
            title: peer_table(results, study, scored, part, methods=(DEFAULT,))
            for title, (scored, part) in parts.items()
        }
    )


def stacked(tables: Mapping[str, str]) -> str:
    """Return one table with the lines of several, each line with the title of its table.

    >>> few = "| shots | 0 |\\n|---|---:|\\n| chn | 1 |"
    >>> many = "| shots | 0 | 1 |\\n|---|---:|---:|\\n| chn | 2 | 3 |"
    >>> print(stacked({"few": few, "many": many}))
    | shots | 0 | 1 |
    |---|---:|---:|
    | few: chn | 1 |  |
    | many: chn | 2 | 3 |
    """
    heads = {title: table.splitlines()[:2] for title, table in tables.items()}
    head = max(heads.values(), key=lambda lines: lines[0].count("|"))
    width = head[0].count("|")
    lines = [
        f"| {title}: {line[2:]}" + "  |" * (width - line.count("|"))
        for title, table in tables.items()
        for line in table.splitlines()[2:]
    ]
    return "\n".join([*head, *lines])


# -- the page -----------------------------------------------------------------------------------------


class Page:
    """The tables and pictures of the page, by name."""

    def __init__(self, results: Path = RESULTS) -> None:
        self.folder = results
        self.studies = {path.name: load(path) for path in sorted((results / "paper").iterdir())}
        self.smaller = {path.name: load(path) for path in sorted(results.glob(f"{SMALLER}/*"))}

    def tables(self) -> dict[str, Callable[[], str]]:
        """Return a function for each table that the files have numbers for."""
        tables: dict[str, Callable[[], str]] = {"data": partial(data_table, self.folder)}
        for study, results in self.studies.items():
            metric, methods = main_metric(results), self.shown(study)
            others = [method for method in methods if method not in (CHN, "random")]
            name = study if study == "chronological" else f"kshot-{study}"
            tables[name] = partial(score_table, results, metric, methods)
            tables[f"{name} per feature"] = partial(score_table, results, f"{metric}_per_feature", methods)
            tables[f"{name} lead"] = partial(lead_table, results, metric, CHN, others)
            if study in self.smaller:
                tables |= self._smaller_tables(study, metric)
        tables["maml-epochs"] = partial(self._table_of_all, MAML_EPOCHS)
        tables["knn-neighbours"] = partial(self._table_of_all, NEIGHBOURS)
        if "elearning" in self.studies:
            tables |= self._elearning_tables(self.studies["elearning"])
        for study in (*STUDIES, "elearning-text"):
            metric = main_metric(load(self.folder / "peers" / study))
            tables[f"peers {study}"] = partial(peer_table, self.folder, study, metric, 32)
            tables[f"peers {study} lead"] = partial(peer_lead_table, self.folder, study, metric, 32)
            tables[f"peers {study} others"] = partial(peer_others, self.folder, study, metric)
        tables["peers times"] = partial(peer_times, self.folder, tuple(STUDIES))
        if (self.folder / "peers" / "elearning-text").is_dir():
            tables["texts"] = self._text_table
        tables["default"] = self._default_table
        tables["suggesting"] = self._suggesting_table
        return tables

    def shown(self, study: str) -> list[str]:
        """Return the methods of a k-shot picture: all baselines, the best MAML and the CHN."""
        experiment = EXPERIMENTS["chronological" if study == "chronological" else f"kshot-{study}"]
        results, methods = self.studies[study], experiment.methods[study]
        best_of = [method for method in experiment.best_of if method in results.methods]
        best = (best_method(results, best_of),) if best_of else ()
        return [*methods[:-1], *best, methods[-1]]

    def _table_of_all(self, methods: Sequence[str]) -> str:
        """Return the scores of methods on the three data sets in one table."""
        return stacked(
            {
                f"{title}, {main_metric(self.studies[study]).upper()}": score_table(
                    self.studies[study], main_metric(self.studies[study]), methods
                )
                for study, title in STUDIES.items()
            }
        )

    def _default_table(self) -> str:
        """Return the lead of the package's default over the paper's CHN on the same targets."""
        cells: dict[str, list[str]] = {}
        shots: list[int] = []
        for study, title in STUDIES.items():
            runs = select(self.studies[study], (CHN,)).runs + self.default(study).runs
            both, metric = Results(data={}, settings={}, runs=runs), main_metric(self.studies[study])
            shots = both.shots
            for scored, name in ((metric, ""), (f"{metric}_per_feature", ", averaged over features")):
                values = values_of(both, scored)
                cells[f"{title}, {metric.upper()}{name}"] = [
                    _lead_text(_leads(values, scored, DEFAULT, CHN, k)) for k in shots
                ]
        return TextTable("", shots, cells, {}, corner=f"{DEFAULT} ahead of {CHN}").to_markdown()

    def _smaller_tables(self, study: str, metric: str) -> dict[str, Callable[[], str]]:
        """Return the scores of MAML with smaller steps, and the lead of the paper's CHN over it."""
        runs = select(self.studies[study], (CHN,)).runs + self.smaller[study].runs
        both = Results(data={}, settings={}, runs=runs)
        return {
            f"{SMALLER} {study}": partial(score_table, self.smaller[study], metric, MAML_EPOCHS),
            f"{SMALLER} {study} lead": partial(lead_table, both, metric, CHN, MAML_EPOCHS),
        }

    def _text_table(self) -> str:
        """Return the scores of the default on Eedi with and without the texts of questions."""
        runs = [
            run.model_copy(update={"method": name})
            for name, study in ((TEXTS, "elearning-text"), (SUBJECTS, "elearning"))
            for run in select(load(self.folder / "peers" / study), (DEFAULT,)).runs
        ]
        both = Results(data={}, settings={}, runs=runs)
        scores = score_table(both, "auroc", (TEXTS, SUBJECTS))
        lead = lead_table(both, "auroc", TEXTS, (SUBJECTS,)).splitlines()[-1]
        return "\n".join([scores, lead.replace(f"| {SUBJECTS} ", "| lead of the texts ", 1)])

    def _suggestions(self) -> dict[str, dict[str, Curve]]:
        """Return the means of an earlier run of ``suggesting.py`` by set and method."""
        curves: dict[str, dict[str, Curve]] = {}
        for line in read_lines(self.folder / "suggesting.csv"):
            curve = curves.setdefault(line["set"], {}).setdefault(line["method"], Curve([], [], []))
            curve.shots.append(int(line["shots"]))
            curve.mean.append(float(line["value"]))
            curve.sigma.append(None)
        return curves

    def _suggesting_table(self) -> str:
        cells: dict[str, list[str]] = {}
        suggestions = self._suggestions()
        for study, curves in suggestions.items():
            metric = main_metric(self.studies[study])
            means = np.array([curve.mean for curve in curves.values()])  # (methods, shots)
            best = [METRICS[metric].best(column) if np.ptp(column) else None for column in means.T]
            for i, method in enumerate(curves):
                texts = [f"{value:.4f}" for value in means[i]]
                cells[f"{STUDIES[study]}, {metric.upper()}, {method}"] = [
                    f"**{text}**" if i == winner else text for text, winner in zip(texts, best, strict=True)
                ]
        return TextTable("", suggestions["movielens"]["suggested"].shots, cells, {}).to_markdown()

    def default(self, study: str) -> Results:
        """Return the results of the package's default on the targets of a study."""
        return select(load(self.folder / "peers" / study), (DEFAULT,), (0, 1, 2, 4, 8, 16, 32))

    def _elearning_tables(self, results: Results) -> dict[str, Callable[[], str]]:
        timings, finetuning = EXPERIMENTS["timings"], EXPERIMENTS["finetuning"]
        methods, shots = timings.methods["elearning"], timings.shots or ()
        methods = tuple(method for method in methods if not method.startswith("maml"))  # as in the paper
        others = [method for method in methods if method != CHN]
        tables: dict[str, Callable[[], str]] = {
            "timings": partial(time_table, results, methods, shots),
            "timings ratios": partial(ratio_table, results, others, shots),
        }
        names, metric = (
            {start: [f"{start}-{n}" for n in EPOCHS] for start in ("train", "chn-train")},
            main_metric(results),
        )
        tables["finetuning"] = partial(
            score_table, results, metric, names["train"] + names["chn-train"], shots=finetuning.shots
        )
        tables["finetuning lead"] = partial(
            lead_table,
            results,
            metric,
            CHN,
            names["train"][1:] + names["chn-train"][1:],
            shots=finetuning.shots,
        )
        return tables

    def pictures(self) -> dict[str, bytes]:
        """Return the pictures by file name."""
        pictures = {}
        for study in self.studies:
            name = study if study == "chronological" else f"kshot-{study}"
            pictures[name] = plot_panels([self._panel(study, self.shown(study))], styles=PAPER_STYLES)
        for name, methods in (("maml-epochs", MAML_EPOCHS), ("knn-neighbours", NEIGHBOURS)):
            # Bands of one colour would cover each other: the tables have the spread.
            panels = [_without_bands(self._panel(study, methods)) for study in STUDIES]
            panels = [panel for panel in panels if panel.curves]
            pictures[name] = plot_panels(panels, columns=1, styles=PAPER_STYLES)
        panels = self._epoch_panels()
        looks = zip(panels[0].curves, _SHOT_COLOURS, _SHOT_MARKERS, strict=True)
        shots = {name: Style(colour, marker, ()) for name, colour, marker in looks}
        pictures["finetuning"] = plot_panels(panels, columns=1, styles=shots)
        for study, title in STUDIES.items():
            metric = main_metric(load(self.folder / "peers" / study))
            means, splits = peer_means(self.folder, study, metric, 128)
            methods = [m for m in PEERS if splits.get(m) == max(splits.values()) and m != EARLIER]
            # The best is drawn last, on top. Bands of this many curves would cover each other.
            curves = {m: _mean_curve(means, m) for m in reversed(methods)}
            pictures[f"peers-{study}"] = plot_panels(
                [Panel(curves, METRICS[metric], f"{title}, targets after 128")], styles=PEER_STYLES
            )
        pictures["peers-heat-map"] = peer_heat_map(self.folder)
        pictures["suggesting"] = plot_panels(
            [
                Panel(curves, METRICS[main_metric(self.studies[study])], STUDIES[study])
                for study, curves in self._suggestions().items()
            ],
            columns=1,
        )
        return {f"{name}.png": picture for name, picture in pictures.items()}

    def _panel(self, study: str, methods: Sequence[str]) -> Panel:
        results = self.studies[study]
        metric = main_metric(results)
        title = STUDIES.get(study, "MovieLens-1M, films split by year from old to new")
        return Panel(select(results, methods).curves(metric), METRICS[metric], title)

    def _epoch_panels(self) -> list[Panel]:
        results, shots = self.studies["elearning"], EXPERIMENTS["finetuning"].shots or ()
        metric = main_metric(results)
        panels = []
        for start, head in (("train", "a random head"), ("chn-train", "the hypernetwork's head")):
            every = {n: results.curves(metric)[f"{start}-{n}"] for n in EPOCHS}
            curves = {}
            for k in shots:
                at = {n: curve.shots.index(k) for n, curve in every.items()}
                curves[f"{k} shot{'s' * (k != 1)}"] = Curve(
                    list(EPOCHS),
                    [every[n].mean[at[n]] for n in EPOCHS],
                    [every[n].sigma[at[n]] for n in EPOCHS],
                )
            title = f"{STUDIES['elearning']}: from {head}"
            panels.append(Panel(curves, METRICS[metric], title, "epochs of fine-tuning"))
        return panels


def _without_bands(panel: Panel) -> Panel:
    curves = {name: curve._replace(sigma=[None] * len(curve.shots)) for name, curve in panel.curves.items()}
    return replace(panel, curves=curves)


def _mean_curve(means: dict[tuple[str, int], float], method: str) -> Curve:
    shots = sorted(k for name, k in means if name == method)
    return Curve(shots, [means[method, k] for k in shots], [None] * len(shots))


_BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """Write each table between the comments with its name."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{tables[block['name']]()}\n\n{block[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--collect", type=Path, nargs="+", default=[], metavar="OUT")
    options = parser.parse_args()
    for out in options.collect:
        print(f"{out}: {len(collect(out, RESULTS))} files of results")
    page = Page()
    write_bytes(PAGE, fill(PAGE.read_text(encoding="utf-8"), page.tables()).encode())
    for name, picture in page.pictures().items():
        write_bytes(PICTURES / name, picture)
    print(f"wrote the tables of {PAGE} and the pictures of {PICTURES}")


if __name__ == "__main__":
    main()
