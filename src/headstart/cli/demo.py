"""``headstart demo``: training, new films and their predictions on real data, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from headstart.cli.printing import say, show

if TYPE_CHECKING:
    from headstart.evaluate.results import Results
    from headstart.experiments.demo import Story


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
    _show_story(outcome.story)
    picture = f"{out}/kshot.png, " if (out / "kshot.png").exists() else ""
    say(
        f"wrote {picture}{out}/report.html, {out}/results.json and the model {out}/films.headstart "
        f"in {time.monotonic() - begin:.0f} s"
    )


def _show_scores(results: Results) -> None:
    curves = results.curves("rmse")
    tested = results.data["splits"][0]["tested"]
    best = [min(curve.mean[i] for curve in curves.values()) for i in range(len(results.shots))]
    lines: list[list[str | Text]] = []
    for method, curve in curves.items():
        pairs = zip(curve.mean, best, strict=True)
        cells = [Text(f"{value:.3f}", "bold green" if value == least else "") for value, least in pairs]
        lines.append([method, *cells])
    title = f"RMSE in stars on {tested} new films, by number of ratings shown (lower is better)"
    show(("method", *map(str, results.shots)), lines, title=title)


def _show_story(story: Story) -> None:
    lines = []
    for i, user in enumerate(story.users):
        cells = [f"{mean:.1f} ± {std:.1f}" for mean, std in (each[i] for each in story.shown.values())]
        lines.append((user, *cells, f"{story.truth[i]:g}"))
    header = ("user", *(f"after {shots} ratings" for shots in story.shown), "true rating")
    show(header, lines, title=f"{story.film}: predicted ± standard deviation")
