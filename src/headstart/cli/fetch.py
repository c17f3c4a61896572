"""``headstart fetch``: download data sets from their official addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.options import Quiet
from headstart.cli.printing import say

NAMES = ("movielens-1m",)  # those of headstart.datasets.DOWNLOADS, which the help text cannot import


def fetch(
    name: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)}.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="Data folder to unpack the data set into.")],
    agree: Annotated[bool, typer.Option("--agree", help="I agree to the data set's terms.")] = False,
    quiet: Quiet = False,
) -> None:
    """Download a data set, check it and unpack it. After an interruption, the same command continues.

    Example: [bold]headstart fetch movielens-1m --to ~/data --agree[/bold]
    """
    from headstart.datasets.fetch import download
    from headstart.datasets.fetch import fetch as fetch_dataset
    from headstart.progress import Reporter

    folder = fetch_dataset(download(name), to, agree=agree, reporter=Reporter(quiet=quiet))
    say(f"unpacked {folder}")
