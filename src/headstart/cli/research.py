"""Commands for research: demo, benchmark, fetch and reproduce."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.options import (
    BackboneName,
    Metadata,
    MetadataTypes,
    MetaShare,
    Observations,
    Quiet,
    Shots,
    TableOptions,
    split_commas,
    whole_numbers,
)
from headstart.cli.output import say, show, show_results

if TYPE_CHECKING:
    from headstart.evaluate.results import Curve, Results
    from headstart.experiments.demo import FilmPredictions


Out = Annotated[Path, typer.Option("--out", help="Folder for the results. Finished splits in it are kept.")]

Methods = Annotated[str, typer.Option(help="Names separated by commas, or 'all' for every method.")]

Splits = Annotated[int, typer.Option(help="Number of random splits of the features.", min=1)]

Seed = Annotated[int, typer.Option(help="Seed of the first split; split i uses seed + i.", min=0)]

TestShare = Annotated[float, typer.Option(help="Share of the features that is held out as new.")]

TestRows = Annotated[
    float,
    typer.Option(help="Share of the rows, at most 500, that is held out as new; 0 for none."),
]

Ranking = Annotated[
    bool,
    typer.Option("--ranking", help="Score rankings, too; allows the methods popularity, item-knn and als."),
]

By = Annotated[
    str | None,
    typer.Option(help="Metadata column, or time: the features of the largest values are held out."),
]


def benchmark(
    observations: Observations,
    out: Out,
    *,
    metadata: Metadata = None,
    metadata_type: MetadataTypes = None,
    reading: TableOptions,
    methods: Methods = "auto,chn,row-column-means,als-values,knn-10",
    shots: Shots = "0,1,2,4,8,16,32",
    splits: Splits = 5,
    seed: Seed = 0,
    test_share: TestShare = 0.1,
    meta_share: MetaShare = None,
    by: By = None,
    test_rows: TestRows = 0.1,
    ranking: Ranking = False,
    backbone: BackboneName = "factorisation",
    quiet: Quiet = False,
) -> None:
    """Hold out some features, treat them as new, and measure how well each method predicts them.

    Every method is scored on the same cells at every number of shots. Some rows are held out as well, and
    predicted from a few of their observations. After an interruption, the same command continues with the
    splits that are not finished.

    Example: [bold]headstart benchmark ratings.csv --metadata films.csv --row user
    --feature film --value stars --methods auto,mean,knn-10 --splits 5 --out compared[/bold]
    """
    from headstart.adapters.base import adapter_names
    from headstart.backbones.base import backbone_config
    from headstart.evaluate import Benchmark, BenchmarkConfig
    from headstart.progress import Reporter

    config = BenchmarkConfig(
        methods=tuple(adapter_names() if methods == "all" else split_commas(methods)),
        shots=tuple(whole_numbers(shots, "--shots")),
        splits=splits,
        seed=seed,
        test_share=test_share,
        meta_share=meta_share,
        by=by,
        test_rows=test_rows,
        ranking=ranking,
        backbone=backbone_config(backbone),
    )
    config.check_methods()  # before the table is read, which can take long
    table = reading.read(observations, quiet=quiet, metadata=metadata, metadata_types=metadata_type)
    results = Benchmark(table, config, name=observations.name).run(out, Reporter(quiet))
    show_results(results)
    picture = "kshot.png, " if (out / "kshot.png").exists() else ""
    say(f"wrote {out}/results.json, {picture}report.html and results.md")


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures and the model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.", min=0)] = 0,
) -> None:
    """Train on real film ratings, then add films that were not in the training data.

    Example: [bold]headstart demo --out demo[/bold]
    """
    from headstart.experiments.demo import run_demo
    from headstart.progress import Reporter

    begin = time.monotonic()
    outcome = run_demo(out, Reporter(), seed)
    _show_scores(outcome.results)
    _show_story(outcome.film, outcome.results.curves("rmse")["headstart"])
    picture = f"{out}/kshot.png, " if (out / "kshot.png").exists() else ""
    say(
        f"wrote {picture}{out}/report.html, {out}/results.json and the model {out}/films.headstart "
        f"in {time.monotonic() - begin:.0f} s"
    )


def _show_scores(results: Results) -> None:
    say(
        f"{results.data['splits'][0]['tested']} new films, by the number of their ratings that were shown; "
        "errors in stars:"
    )
    show_results(results)


def _show_story(story: FilmPredictions, curve: Curve) -> None:
    lines = []
    for i, user in enumerate(story.users):
        cells = [
            f"{mean:.1f} ± {std:.1f}"
            for mean, std in (predictions[i] for predictions in story.predicted.values())
        ]
        lines.append((user, *cells, f"{story.truth[i]:g}"))
    header = ("user", *(f"after {shots} ratings" for shots in story.predicted), "true rating")
    show(header, lines, title=f"{story.film}: predicted ± standard deviation")
    everywhere = dict(zip(curve.shots, curve.mean, strict=True))
    errors = ", ".join(f"{story.errors[shots]:.2f} after {shots}" for shots in story.errors)
    average = ", ".join(f"{everywhere[shots]:.2f} after {shots}" for shots in story.errors)
    say(
        "A single rating stays uncertain: more ratings bring some predictions nearer to it, and others not. "
        f"Over the {story.tested} other users of this film, and 20 draws of its first ratings, the error is "
        f"{errors} ratings; over all new films {average}."
    )


# The help texts cannot import these names from their modules, which need torch.
DATASET_NAMES = ("movielens-1m",)

EXPERIMENT_NAMES = (
    "kshot-movielens",
    "kshot-neuropathic",
    "kshot-elearning",
    "timings",
    "chronological",
    "maml-epochs",
    "knn-neighbours",
    "finetuning",
)


def fetch(
    name: Annotated[str, typer.Argument(help=f"{', '.join(DATASET_NAMES)}.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="Data folder to unpack the data set into.")],
    agree: Annotated[bool, typer.Option("--agree", help="I agree to the data set's terms.")] = False,
    quiet: Quiet = False,
) -> None:
    """Download a data set, check it and unpack it. After an interruption, the same command continues.

    Example: [bold]headstart fetch movielens-1m --to ~/data --agree[/bold]
    """
    from headstart.datasets.downloads import download
    from headstart.datasets.downloads import fetch as fetch_dataset
    from headstart.progress import Reporter

    folder = fetch_dataset(download(name), to, agree=agree, reporter=Reporter(quiet=quiet))
    say(f"unpacked {folder}")


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENT_NAMES)}, or all.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures, reports and numbers.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder that contains ml-1m/, neuropathic/ and eedi/.", envvar="HEADSTART_DATA"
        ),
    ] = None,
    splits: Splits = 5,
    preset: Annotated[str, typer.Option(help="Hyper-parameters: paper or tuned.")] = "paper",
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with changes to the preset.")
    ] = None,
    eedi_tasks: Annotated[
        str, typer.Option(help="Tasks of Eedi: 3_4, or 1_2 as in the paper, if you have its files.")
    ] = "3_4",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Save the meta-trained models of each split.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use made-up data and a few epochs.")] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper. After an interruption, the same command continues.

    Example: [bold]headstart reproduce kshot-movielens --data ~/data --out kshot-movielens[/bold]
    """
    from headstart.experiments.reproduce import Reproduction
    from headstart.progress import Reporter

    experiment = Reproduction(
        name,
        data,
        splits=splits,
        seed=seed,
        preset=preset,
        config=config,
        eedi_tasks=eedi_tasks,
        keep_models=keep_models,
        quick=quick,
    )
    for folder in experiment.run(out, Reporter(quiet=quiet)):
        picture = " and picture.png" if (folder / "picture.png").exists() else ""
        say(f"wrote {folder}/report.html, report.md{picture}")
