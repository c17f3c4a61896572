"""Commands of the service: serve, and token create, list and revoke."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.options import Model
from headstart.cli.output import say, show
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headstart.model import Headstart
    from headstart.service.store import Store


StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="URL of the store of changes: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
        show_default="sqlite:///MODEL.db, beside the model",
    ),
]

Url = Annotated[str, typer.Option("--store", help="URL of the store.", show_default=False)]

token_commands = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke the API tokens of a service.", rich_markup_mode="rich"
)


def serve(
    model: Model,
    store: StoreUrl = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than this machine's own needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Number of processes.", min=1, max=64)] = 1,
    rate: Annotated[float, typer.Option(help="Requests per second that a token may make.", min=0.1)] = 2000.0,
    watch: Annotated[
        bool, typer.Option(help="Reload the model when another one is saved to its folder.")
    ] = True,
) -> None:
    """Serve a model over HTTP. Changes are kept in a store; the model's folder is only read.

    Example: [bold]headstart serve films.headstart --port 8000[/bold]
    """
    _require_service()
    from headstart.model.saving.folder import model_digest
    from headstart.service.app import run
    from headstart.service.auth import TokenSet
    from headstart.service.database import redact_url
    from headstart.service.worker import ServiceSettings

    model_digest(model)  # raises an error before anything is started
    url = store or default_store(model)
    loopback = is_loopback(host)
    with _open_store(url) as opened:
        tokens = TokenSet(opened.tokens())
    command = f"headstart token create NAME --scope admin --store {redact_url(url)}"
    if not tokens.required and not loopback:
        raise InputError(
            f"there are no tokens, so that everyone who reaches {host} could change the model; make one with "
            f"{command}, or leave out --host"
        )
    settings = ServiceSettings(loopback=loopback, rate=rate, burst=2 * rate, watch_model=watch)
    address = f"[{host}]" if ":" in host else host
    say(f"serving {model} with the store {redact_url(url)} at http://{address}:{port}")
    if not tokens.required:
        say("there are no tokens: only this machine can reach it, and everyone on it may change everything")
    else:
        say("open without a token: the page, /docs, /openapi.json, /health, /ready; all else needs a token")
    if tokens.required and not tokens:
        say(f"all tokens are revoked: nothing else is answered until you make one with {command}")
    run(model, url, settings, host, port, workers)


@token_commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name of the token, such as its user.", show_default=False)],
    store: Url,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read, write or admin; each contains those before it.")
    ] = None,
) -> None:
    """Create a token and print it. It is not kept and cannot be shown again.

    Example: [bold]headstart token create shop --scope write --store sqlite:///films.db[/bold]
    """
    _require_service()
    from headstart.service.auth import create_token

    with _open_store(store) as opened:
        typer.echo(create_token(opened, name, scope or ["read"]))


@token_commands.command("list")
def list_tokens(store: Url) -> None:
    """List all tokens; their secrets are not kept.

    Example: [bold]headstart token list --store sqlite:///films.db[/bold]
    """
    _require_service()
    with _open_store(store) as opened:
        lines = [
            (
                token.id,
                token.name,
                " ".join(sorted(token.scopes)),
                f"{token.at:%Y-%m-%d %H:%M}",
                f"{token.revoked:%Y-%m-%d %H:%M}" if token.revoked else "",
            )
            for token in opened.tokens()
        ]
    show(("id", "name", "scopes", "created", "revoked"), lines)


@token_commands.command("revoke")
def revoke(
    identity: Annotated[str, typer.Argument(metavar="ID", help="ID of the token, as list shows it.")],
    store: Url,
) -> None:
    """Revoke a token. Running services refuse it within a second.

    Example: [bold]headstart token revoke 0123456789ab --store sqlite:///films.db[/bold]
    """
    _require_service()
    with _open_store(store) as opened:
        opened.revoke_token(identity)
    say(f"revoked {identity}")


def export_store(store: str) -> tuple[pa.Table, pa.Table]:
    """Return the observations in a store in the long form, and the metadata of the features added to it."""
    _require_service()
    from headstart.service.views import export

    with _open_store(store) as opened:
        return export(opened)


def load_with_store(model: Path, store: str) -> Headstart:
    """Load a saved model, and apply the changes in the store of a service that serves it."""
    _require_service()
    from headstart.service.live_model import LiveModel

    with _open_store(store) as opened:
        return LiveModel(opened, model).snapshot.model


def default_store(model: Path) -> str:
    """Return the URL of a store beside the folder of a model."""
    folder = model.resolve()
    return f"sqlite:///{folder.with_name(folder.name + '.db')}"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _open_store(url: str) -> Store:
    from headstart.service.store import Store

    return Store(url)


def _require_service() -> None:
    """Raise an error that names the packages to install if the libraries of the service are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy", "alembic") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the service needs {', '.join(missing)}; install it with pip install 'headstart[service]'"
        )
