"""``headstart benchmark``: compare methods on one's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.adapters.registry import adapter_names
from headstart.backbones.registry import backbone_config
from headstart.cli.options import (
    BackboneName,
    Duplicates,
    FeatureColumn,
    Form,
    Metadata,
    MetadataTypes,
    MetaShare,
    Quiet,
    RowColumn,
    TableKind,
    ValueColumn,
    parts,
    read_table,
)
from headstart.cli.printing import say, show
from headstart.errors import InputError
from headstart.evaluate import Benchmark, BenchmarkConfig
from headstart.evaluate.tables import metric_table
from headstart.progress import Reporter

Observations = Annotated[Path, typer.Argument(help="CSV or Parquet, as for headstart fit.")]
Methods = Annotated[str, typer.Option(help="Names with commas between, or 'all' for every method there is.")]
TestShare = Annotated[float, typer.Option(help="Share of the features held out as new.")]


def benchmark(
    observations: Observations,
    out: Annotated[Path, typer.Option("--out", help="Folder for results; finished splits there are kept.")],
    metadata: Metadata = None,
    row: RowColumn = "row",
    feature: FeatureColumn = "feature",
    value: ValueColumn = "value",
    kind: TableKind = None,
    form: Form = "auto",
    duplicates: Duplicates = "error",
    metadata_type: MetadataTypes = None,
    methods: Methods = "chn-bayes,chn,mean,mean-head,knn-10",
    shots: Annotated[str, typer.Option(help="Numbers of observations revealed.")] = "0,1,2,4,8,16,32",
    splits: Annotated[int, typer.Option(help="How many random splits of the features.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Split i is drawn with seed + i.", min=0)] = 0,
    test_share: TestShare = 0.1,
    meta_share: MetaShare = None,
    by: Annotated[str | None, typer.Option(help="Metadata column to split by, old to new.")] = None,
    backbone: BackboneName = "factorisation",
    quiet: Quiet = False,
) -> None:
    """Hold features out, pretend they are new, and see how well each method predicts them.

    Every method and number of shots is scored on the same cells. An interrupted run goes on where it
    stopped when the same command is given again.

    Example: [bold]headstart benchmark ratings.csv --metadata films.csv --row user
    --feature film --value stars --methods chn-bayes,mean,knn-10 --splits 5 --out compared[/bold]
    """
    config = BenchmarkConfig(
        methods=tuple(adapter_names() if methods == "all" else parts(methods)),
        shots=tuple(_numbers(shots, "--shots", int)),
        splits=splits,
        seed=seed,
        test_share=test_share,
        meta_share=meta_share,
        by=by,
        backbone=backbone_config(backbone),
    )
    for method in config.methods:
        config.method(method, seed)  # refuses an unknown one before the table is read
    table = read_table(observations, metadata, (row, feature, value), kind, form, duplicates, metadata_type)
    found = Benchmark(table, config, name=observations.name).run(out, Reporter(quiet))
    for metric in ("rmse", "auroc"):
        if metric in found.metrics:
            told = metric_table(found, metric)
            lines = [(method, *cells) for method, cells in told.cells.items()]
            show(("method", *map(str, told.shots)), lines, title=told.title)
    say(f"wrote {out}/results.json, kshot.png, report.html and results.md")


def _numbers(text: str, option: str, kind: type) -> list[float]:
    try:
        return [kind(part) for part in parts(text)]
    except ValueError:
        raise InputError(f"{option} must be numbers with commas between; got {text!r}") from None
