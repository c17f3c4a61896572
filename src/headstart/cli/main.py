"""The ``headstart`` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from headstart.cli import benchmark, demo, fetch, models, reproduce
from headstart.errors import HeadstartError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Predict a brand-new column of a sparse table at once, from few observations or none.\n\n"
    "Start with [bold]headstart demo[/bold], or [bold]headstart fit[/bold] on a file of your own.",
)
app.command("fit")(models.fit)
app.command("add")(models.add)
app.command("predict")(models.predict)
app.command("info")(models.info)
app.command("benchmark")(benchmark.benchmark)
app.command("demo")(demo.demo)
app.command("fetch")(fetch.fetch)
app.command("reproduce")(reproduce.reproduce)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Options that stand before the command."""
    _state["debug"] = debug


_state = {"debug": False}


def main() -> None:
    """Run the command; errors are one line on stderr, and the exit code is 0 only on success."""
    try:
        app()
    except HeadstartError as error:
        _fail(str(error), error)
    except KeyboardInterrupt as error:
        _fail("interrupted; the same command goes on where it stopped (fit: with --resume)", error, code=130)
    except (OSError, MemoryError) as error:
        _fail(f"{type(error).__name__}: {error}", error)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error}; --debug before the command shows where", error)


def _fail(message: str, error: BaseException, code: int = 1) -> None:
    if _state["debug"]:
        raise error
    Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {_plain(message)}", highlight=False)
    sys.exit(code)


def _plain(message: str) -> str:
    """Keep square brackets in messages from being read as markup."""
    return message.replace("[", r"\[")
