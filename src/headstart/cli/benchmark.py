"""``headstart benchmark``: compare methods on your own data."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import (
    BackboneName,
    Decimal,
    Duplicates,
    Encoding,
    FeatureColumn,
    Form,
    Metadata,
    MetadataTypes,
    MetaShare,
    Observations,
    Quiet,
    RowColumn,
    Separator,
    TableKind,
    ValueColumn,
    parts,
    read_table,
    whole_numbers,
)
from headstart.cli.printing import say, show

Out = Annotated[Path, typer.Option("--out", help="Folder for the results. Finished splits in it are kept.")]
Methods = Annotated[str, typer.Option(help="Names separated by commas, or 'all' for every method.")]
Shots = Annotated[str, typer.Option(help="Numbers of observations of a new feature, separated by commas.")]
TestShare = Annotated[float, typer.Option(help="Share of the features that is held out as new.")]
TestRows = Annotated[
    float,
    typer.Option(help="Share of the rows, at most 500, that is held out as new; 0 for none."),
]
By = Annotated[
    str | None, typer.Option(help="Metadata column: the features with the largest values are held out.")
]


def benchmark(
    observations: Observations,
    out: Out,
    metadata: Metadata = None,
    row: RowColumn = None,
    feature: FeatureColumn = None,
    value: ValueColumn = None,
    kind: TableKind = None,
    form: Form = "auto",
    duplicates: Duplicates = "error",
    metadata_type: MetadataTypes = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    methods: Methods = "auto,chn,mean,mean-head,knn-10",
    shots: Shots = "0,1,2,4,8,16,32",
    splits: Annotated[int, typer.Option(help="Number of random splits of the features.", min=1)] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the first split; split i uses seed + i.", min=0)] = 0,
    test_share: TestShare = 0.1,
    meta_share: MetaShare = None,
    by: By = None,
    test_rows: TestRows = 0.1,
    backbone: BackboneName = "factorisation",
    quiet: Quiet = False,
) -> None:
    """Hold out some features, treat them as new, and measure how well each method predicts them.

    Every method is scored on the same cells at every number of shots. Some rows are held out as well, and
    predicted from a few of their observations. After an interruption, the same
    command continues with the splits that are not finished.

    Example: [bold]headstart benchmark ratings.csv --metadata films.csv --row user
    --feature film --value stars --methods auto,mean,knn-10 --splits 5 --out compared[/bold]
    """
    from headstart.adapters.registry import adapter_names
    from headstart.backbones.registry import backbone_config
    from headstart.evaluate import Benchmark, BenchmarkConfig, metric_table
    from headstart.evaluate.results import TESTS
    from headstart.progress import Reporter

    config = BenchmarkConfig(
        methods=tuple(adapter_names() if methods == "all" else parts(methods)),
        shots=tuple(whole_numbers(shots, "--shots")),
        splits=splits,
        seed=seed,
        test_share=test_share,
        meta_share=meta_share,
        by=by,
        test_rows=test_rows,
        backbone=backbone_config(backbone),
    )
    config.check_methods()  # before the table is read, which can take long
    columns, text = (row, feature, value), (separator, decimal, encoding)
    table = read_table(
        observations, metadata, columns, kind, form, duplicates, metadata_type, text, quiet=quiet
    )
    results = Benchmark(table, config, name=observations.name).run(out, Reporter(quiet))
    for test, metric in product(TESTS, ("rmse", "auroc")):
        if metric in results.metrics_of(test):
            shown = metric_table(results, metric, test)
            lines = [(method, *cells) for method, cells in shown.cells.items()]
            show(("method", *map(str, shown.shots)), lines, title=shown.title)
    picture = "kshot.png, " if (out / "kshot.png").exists() else ""
    say(f"wrote {out}/results.json, {picture}report.html and results.md")
