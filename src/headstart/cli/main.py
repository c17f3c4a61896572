"""The ``headstart`` command: it registers the commands, and reports their errors.

The modules of the commands import at the top only the modules that options and help texts need. Each command
imports the rest when it runs, so that help and version are shown without waiting for torch.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from copy import copy
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from headstart import __version__
from headstart.cli import ask, change, fit, research, serve
from headstart.cli.options import expand_groups
from headstart.cli.output import print_damage, say
from headstart.distributed import is_launched
from headstart.errors import HeadstartError, command_line
from headstart.parallel import set_openmp_wait_policy


class _InterruptedError(Exception):
    """Replaces KeyboardInterrupt, which typer would catch to print its own message."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _InterruptedError(str(error)) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Predict a brand-new column of a sparse table at once, from few observations or none.\n\n"
    "Start with [bold]headstart demo[/bold], or [bold]headstart fit[/bold] on a file of your own.",
)

for _command in (
    fit.fit,
    fit.refit,
    ask.predict,
    ask.sample,
    ask.impute,
    ask.recommend,
    ask.audience,
    ask.suggest,
    ask.similar,
    ask.explain,
    ask.evaluate,
    ask.features,
    ask.rows,
    ask.info,
    ask.card,
    ask.check,
    change.add_feature,
    change.add_features,
    change.add_row,
    change.add_rows,
    change.observe,
    change.observe_feature,
    change.observe_row,
    change.remove,
    change.rename_feature,
    change.rename_row,
    change.export,
    serve.serve,
    research.demo,
    research.benchmark,
    research.fetch,
    research.reproduce,
):
    app.command(_command.__name__.replace("_", "-"))(expand_groups(_command))

app.add_typer(serve.token_commands, name="token")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"headstart {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options before the command."""
    _state["debug"] = debug


_state = {"debug": False}

# Importing torch creates hundreds of thousands of objects that stay. By default, Python looks for garbage
# among them again and again, and once more when it exits: a quarter of the time of ``import torch``.
_GARBAGE_THRESHOLDS = (100_000, 20, 100)


def _app_of(arguments: list[str]) -> typer.Typer:
    """Return ``app`` with only the command that ``arguments`` name; with all if they name none.

    Building the options of all commands would take as long as running a short one.
    """
    name = next((argument for argument in arguments if argument != "--debug"), None)
    named = [command for command in app.registered_commands if command.name == name]
    smaller = copy(app)
    smaller.registered_commands = named or app.registered_commands
    return smaller


def main() -> None:
    """Run the command. An error is one line on stderr; the exit status is 0 only on success."""
    set_openmp_wait_policy()  # before a command imports torch
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # replace characters that the terminal cannot show
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")
    try:
        with command_line(), print_damage():
            _app_of(sys.argv[1:])()
    except HeadstartError as error:
        _fail(str(error), error)
    except (_InterruptedError, KeyboardInterrupt) as error:
        _stop(Text(str(error) or "interrupted; run the same command again"), error, status=130)
    except (OSError, MemoryError) as error:
        _fail(f"{type(error).__name__}: {error}", error)
    except Exception as error:
        _fail(f"unexpected {type(error).__name__}: {error}; --debug before the command shows where", error)
    finally:
        gc.freeze()  # the objects of torch are not looked through again when Python exits


def _fail(message: str, error: BaseException) -> None:
    _stop(Text.assemble(("error: ", "red"), message), error, status=1)


def _stop(message: Text, error: BaseException, status: int) -> None:
    if _state["debug"]:
        raise error
    if is_launched() and os.environ["RANK"] != "0":
        if getattr(error, "shared", False):
            sys.exit(status)  # the first process prints the message
        message = Text.assemble(f"process {os.environ['RANK']}: ", message)
    say(message, stderr=True)
    sys.exit(status)
