"""``headstart demo``: the whole of it on real data, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid

from headstart.evaluate.results import Results
from headstart.experiments.demo import Story, run_demo
from headstart.progress import Reporter


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures and the model.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
) -> None:
    """Train on real film ratings, then add films the model has never seen.

    Example: [bold]headstart demo --out demo[/bold]
    """
    begin = time.monotonic()
    console = Console()
    outcome = run_demo(out, Reporter(console=Console(stderr=True)), seed)
    console.print(_scores(outcome.results))
    console.print(_story(outcome.story))
    console.print(
        f"wrote {out}/kshot.png, {out}/report.html, {out}/results.json and the model {out}/films.headstart "
        f"in {time.monotonic() - begin:.0f} s",
        highlight=False,
        soft_wrap=True,
    )


def _scores(results: Results) -> Grid:
    curves = results.curves("rmse")
    tested = results.data["splits"][0]["tested"]
    title = f"RMSE in stars on {tested} films the model has never seen, by ratings shown (lower is better)"
    grid = Grid("method", *(str(shots) for shots in results.shots), title=title, title_style="bold")
    best = [min(curve.mean[i] for curve in curves.values()) for i in range(len(results.shots))]
    for method, curve in curves.items():
        cells = [
            f"[bold green]{value:.3f}[/]" if value == least else f"{value:.3f}"
            for value, least in zip(curve.mean, best, strict=True)
        ]
        grid.add_row(method, *cells)
    return grid


def _story(story: Story) -> Grid:
    grid = Grid("user", *(f"after {shots} ratings" for shots in story.shown), "true rating",
                title=f"{story.film}: predicted ± standard deviation", title_style="bold")  # fmt: skip
    for i, user in enumerate(story.users):
        said = [f"{mean:.1f} ± {std:.1f}" for mean, std in (each[i] for each in story.shown.values())]
        grid.add_row(user, *said, f"{story.truth[i]:g}")
    return grid
