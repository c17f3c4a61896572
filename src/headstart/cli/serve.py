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
        help="Where to keep what arrives: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
        show_default="sqlite:///MODEL.db, beside the model",
    ),
]

Url = Annotated[str, typer.Option("--store", help="URL of the store.", show_default=False)]

tokens = typer.Typer(
    no_args_is_help=True, help="Create, list and revoke the API tokens of a service.", rich_markup_mode="rich"
)


def serve(
    model: Model,
    store: StoreUrl = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than this machine's own needs tokens.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Number of processes.", min=1, max=64)] = 1,
    rate: Annotated[float, typer.Option(help="Requests per second that a token may make.", min=0.1)] = 2000.0,
    watch: Annotated[
        bool, typer.Option(help="Take over a model that replaces the served one in its folder.")
    ] = True,
) -> None:
    """Serve a model over HTTP: what arrives is kept in a store, and the model's folder is only read.

    Example: [bold]headstart serve films.headstart --port 8000[/bold]
    """
    _require_service()
    from headstart.model.saving.folder import model_digest
    from headstart.service.app import run
    from headstart.service.store import redact_url
    from headstart.service.worker import ServiceSettings

    model_digest(model)  # an error before anything is started
    url = store or default_store(model)
    loopback = is_loopback(host)
    with _opened(url) as opened:
        known = [token for token in opened.tokens() if token.revoked is None]
    if not known and not loopback:
        raise InputError(
            f"there are no tokens, so that everyone who reaches {host} could change the model; make one with "
            f"headstart token create NAME --scope admin --store {url}, or leave out --host"
        )
    settings = ServiceSettings(loopback=loopback, rate=rate, burst=2 * rate, watch_model=watch)
    shown = f"[{host}]" if ":" in host else host
    say(f"serving {model} with the store {redact_url(url)} at http://{shown}:{port}")
    if not known:
        say("there are no tokens: only this machine can reach it, and everyone on it may change everything")
    run(model, url, settings, host, port, workers)


@tokens.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose token it is.", show_default=False)],
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

    with _opened(store) as opened:
        typer.echo(create_token(opened, name, scope or ["read"]))


@tokens.command("list")
def list_tokens(store: Url) -> None:
    """List all tokens; their secrets are not kept.

    Example: [bold]headstart token list --store sqlite:///films.db[/bold]
    """
    _require_service()
    with _opened(store) as opened:
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


@tokens.command("revoke")
def revoke(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Of the token, as list shows it.")], store: Url
) -> None:
    """Let a token be refused from now on, by running services within a second.

    Example: [bold]headstart token revoke 0123456789ab --store sqlite:///films.db[/bold]
    """
    _require_service()
    with _opened(store) as opened:
        opened.revoke_token(identity)
    say(f"revoked {identity}")


def export_store(store: str) -> tuple[pa.Table, pa.Table]:
    """What arrived at a service: observations in the long form, and the metadata of added features."""
    _require_service()
    from headstart.service.views import export

    with _opened(store) as opened:
        return export(opened)


def join_url(model: Path, store: str) -> Headstart:
    """A saved model with all that arrived at a service that serves it."""
    _require_service()
    from headstart.service.live_model import LiveModel

    with _opened(store) as opened:
        return LiveModel(opened, model).snapshot.model


def default_store(model: Path) -> str:
    """The store beside a model's folder."""
    place = model.resolve()
    return f"sqlite:///{place.with_name(place.name + '.db')}"


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _opened(url: str) -> Store:
    from headstart.service.store import Store

    return Store(url)


def _require_service() -> None:
    """Say what to install if the service's libraries are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "sqlalchemy", "alembic") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the service needs {', '.join(missing)}; install it with pip install 'headstart[service]'"
        )
