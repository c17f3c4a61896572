"""``headstart reproduce``: the paper's figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet
from headstart.cli.printing import say
from headstart.experiments.catalogue import ALL, EXPERIMENTS

_NAMES = f"{', '.join(EXPERIMENTS)}, or {ALL}."


def reproduce(
    name: Annotated[str, typer.Argument(help=_NAMES, show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures, reports and numbers.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Folder that contains ml-1m/, neuropathic/ and eedi/.", envvar="HEADSTART_DATA"
        ),
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Number of random splits of the features.")] = 5,
    preset: Annotated[str, typer.Option(help="Hyper-parameters: paper or tuned.")] = "paper",
    quick: Annotated[bool, typer.Option("--quick", help="Use made-up data and a few epochs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first split; split i uses seed + i.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper. After an interruption, the same command continues.

    Example: [bold]headstart reproduce kshot-movielens --data ~/data --out kshot-movielens[/bold]
    """
    from headstart.experiments.reproduce import Reproduction
    from headstart.progress import Reporter

    experiment = Reproduction(name, data, splits=splits, seed=seed, preset=preset, quick=quick)
    for folder in experiment.run(out, Reporter(quiet=quiet)):
        picture = " and picture.png" if (folder / "picture.png").exists() else ""
        say(f"wrote {folder}/report.html, report.md{picture}")
