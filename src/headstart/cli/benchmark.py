"""``headstart benchmark``: compare methods on one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid

from headstart.adapters.registry import adapter_names
from headstart.backbones.registry import backbone_config
from headstart.errors import InputError
from headstart.evaluate import Benchmark, BenchmarkConfig
from headstart.evaluate.results import Results
from headstart.evaluate.tables import metric_table
from headstart.progress import Reporter
from headstart.table import Table

Observations = Annotated[Path, typer.Option("--observations", help="CSV or Parquet, as for headstart fit.")]
Metadata = Annotated[Path | None, typer.Option("--features", help="Metadata, a line a feature.")]
Methods = Annotated[
    str, typer.Option(help="Names with commas between, or 'all' for every method of the paper.")
]
Fractions = Annotated[str, typer.Option(help="Shares of features to train, meta-train and meta-test on.")]


def benchmark(
    observations: Observations,
    out: Annotated[Path, typer.Option("--out", help="Folder for results; finished splits there are kept.")],
    features: Metadata = None,
    row: Annotated[str, typer.Option("--row", help="Column that names the row.")] = "row",
    feature: Annotated[str, typer.Option("--feature", help="Column that names the feature.")] = "feature",
    value: Annotated[str, typer.Option("--value", help="Column that holds the value.")] = "value",
    kind: Annotated[str | None, typer.Option(help="Kind of all features; else inferred.")] = None,
    methods: Methods = "chn,mean,mean-head,knn-10",
    shots: Annotated[str, typer.Option(help="Numbers of observations revealed.")] = "0,1,2,4,8,16,32",
    splits: Annotated[int, typer.Option(help="How many random splits of the features.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Split i is drawn with seed + i.", min=0)] = 0,
    fractions: Fractions = "0.6,0.3,0.1",
    by: Annotated[str | None, typer.Option(help="Metadata column to split by, old to new.")] = None,
    backbone: Annotated[str, typer.Option(help="pvae or feedforward.")] = "pvae",
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Hold features out, pretend they are new, and see how well each method predicts them.

    Every method and number of shots is scored on the same cells. An interrupted run goes on where it
    stopped when the same command is given again.

    Example: [bold]headstart benchmark --observations ratings.csv --features films.csv --row user
    --feature film --value stars --methods chn,mean,knn-10 --splits 5 --out compared[/bold]
    """
    config = BenchmarkConfig(
        methods=tuple(adapter_names() if methods == "all" else _parts(methods)),
        shots=tuple(_numbers(shots, "--shots", int)),
        splits=splits,
        seed=seed,
        fractions=tuple(_numbers(fractions, "--fractions", float)),
        by=by,
        backbone=backbone_config(backbone),
    )
    table = Table.read(observations, metadata=features, row=row, feature=feature, value=value, kinds=kind)
    found = Benchmark(table, config, name=observations.name).run(out, Reporter(quiet))
    console = Console()
    for metric in ("rmse", "auroc"):
        if metric in found.metrics:
            console.print(_grid(found, metric))
    console.print(
        f"wrote {out}/results.json, kshot.png, report.html and results.md", highlight=False, soft_wrap=True
    )


def _grid(results: Results, metric: str) -> Grid:
    table = metric_table(results, metric)
    grid = Grid("method", *(str(shots) for shots in table.shots), title=table.title, title_style="bold")
    for method, cells in table.cells.items():
        grid.add_row(method, *cells)
    return grid


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str, option: str, kind: type) -> list[float]:
    try:
        return [kind(part) for part in _parts(text)]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between; got {text!r}") from None
