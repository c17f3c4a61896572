"""Assemble the application from endpoints, page, documentation and guard, and serve it."""

from __future__ import annotations

import asyncio
import html
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headstart import __version__
from headstart.service import supervisor
from headstart.service.auth import Guard
from headstart.service.errors import PROBLEM_RESPONSE, PROBLEM_SCHEMA, install_handlers
from headstart.service.routes import (
    DIRECT,
    PARSED_HERE,
    admin,
    features,
    observations,
    operations,
    predictions,
    rankings,
    rows,
)
from headstart.service.views import IndexCache
from headstart.service.worker import Service, ServiceSettings

PAGE = Path(__file__).parent / "page"


_GRACE_SECONDS = 20  # for requests in progress when the service stops

MAX_HEADERS = 65_536  # bytes of the request line and all headers

HEADER_SECONDS = 20.0  # from the first byte, or from the connection

_ROUTERS = (features, rows, observations, predictions, rankings, admin, operations)


def create_app(model: str | Path, store: str, settings: ServiceSettings | None = None) -> Application:
    """Create the application that serves a model.

    Parameters
    ----------
    model : str or Path
        The folder of a fitted model; it is only read.
    store : str
        The URL of the store, as ``sqlite:///store.db`` or ``postgresql://user@host/database``.
    settings : ServiceSettings, default=None
        The limits of the service.

    Returns
    -------
    Application
        For any ASGI server.
    """
    return Application(Service(Path(model).resolve(), store, settings or ServiceSettings()))


class Application:
    """An ASGI application that serves a model.

    Attributes
    ----------
    service : Service
        The worker of this process.
    api : FastAPI
        The endpoints, without the guard.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.api = _build_api(service)
        # Metrics name an endpoint by the path of its route.
        self._direct = {key: (SimpleNamespace(path=key[1]), endpoint) for key, endpoint in DIRECT.items()}
        self._guard = Guard(self._dispatch, service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            # Names may contain an encoded slash: match the path as sent; the routes decode names.
            raw = scope.get("raw_path", b"").split(b"?")[0]
            if raw.startswith(b"/v1/"):
                scope = {**scope, "path": raw.decode("latin-1")}
        await self._guard(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoints of ``DIRECT``, and all others through FastAPI."""
        found = self._direct.get((scope.get("method", ""), scope.get("path", "")))
        if found is None:
            await self.api(scope, receive, send)
            return
        scope["route"], endpoint = found
        scope["app"] = self.api
        await (await endpoint(Request(scope, receive)))(scope, receive, send)


def _build_api(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await run_in_threadpool(service.close)

    api = FastAPI(
        title="Headstart",
        version=__version__,
        description="Predicts new features of a sparse table at once.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses={"4XX": PROBLEM_RESPONSE, 503: PROBLEM_RESPONSE},
    )
    api.state.service, api.state.indices = service, IndexCache()
    install_handlers(api)
    for router in _ROUTERS:
        api.include_router(router)
    api.openapi = lambda: _openapi_document(api)  # type: ignore[method-assign]
    api.add_route("/docs", documentation, include_in_schema=False)
    if PAGE.is_dir():
        api.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    return api


def _openapi_document(api: FastAPI) -> dict[str, Any]:
    """Return FastAPI's OpenAPI document with the components that FastAPI does not know.

    These are problems, tokens, and bodies that FastAPI does not parse.
    """
    if api.openapi_schema is None:
        document = get_openapi(
            title=api.title, version=api.version, description=api.description, routes=api.routes
        )
        schemas = document["components"]["schemas"]
        schemas["Problem"] = PROBLEM_SCHEMA
        for body in PARSED_HERE:
            schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= {**schema.pop("$defs", {}), body.__name__: schema}
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"token": []}]
        api.openapi_schema = document
    return api.openapi_schema


async def documentation(request: Request) -> HTMLResponse:
    """Show every endpoint with its parameters and body."""
    document: dict[str, Any] = request.app.openapi()
    operations = [
        _operation_section(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        _schema_section(name, schema) for name, schema in sorted(document["components"]["schemas"].items())
    ]
    title = f"{_escape(document['info']['title'])} {_escape(document['info']['version'])}: API"
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>'
        f"<h1>{title}</h1><p>For programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"<h2>Endpoints</h2>{''.join(operations)}<h2>Bodies</h2>{''.join(schemas)}</body></html>"
    )


def _operation_section(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = "".join(
        f"<li><code>{_escape(parameter['name'])}</code> ({_escape(parameter['in'])}): "
        f"{_escape(_describe_type(parameter['schema']))}</li>"
        for parameter in operation.get("parameters", [])
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    body = f"<p>Body: <a href='#{_escape(reference)}'>{_escape(reference)}</a></p>" if reference else ""
    return (
        f"<section><h3><code>{method.upper()} {_escape(path)}</code></h3>"
        f"<p>{_escape(operation.get('description') or operation.get('summary', ''))}</p>"
        f"{f'<ul>{lines}</ul>' if lines else ''}{body}</section>"
    )


def _schema_section(name: str, schema: dict[str, Any]) -> str:
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    return f"<section id='{_escape(name)}'><h3>{_escape(name)}</h3><pre>{_escape(text)}</pre></section>"


def _describe_type(schema: dict[str, Any]) -> str:
    words = [
        schema.get("type", ""),
        *(f"{key} {schema[key]}" for key in ("enum", "default") if key in schema),
    ]
    return ", ".join(word for word in words if word)


def _escape(value: object) -> str:
    return html.escape(str(value), quote=True)


class LimitedProtocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, which refuses slow and endless headers.

    uvicorn keeps all bytes of headers that have not ended, and waits for more without a limit.
    """

    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count those of headers that have not ended."""
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADERS:
                self._refuse(f"The headers are larger than {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._stop_timer()
        self._header_bytes = 0
        message = f"The headers took longer than {HEADER_SECONDS:g} seconds."
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._refuse, message)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, message: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.send_400_response(message)


def run(model: Path, url: str, settings: ServiceSettings, host: str, port: int, workers: int = 1) -> None:
    """Serve a model until SIGTERM or Ctrl-C; requests in progress are finished.

    Parameters
    ----------
    model : Path
        The folder of a fitted model.
    url : str
        The URL of the store.
    settings : ServiceSettings
        The limits of the service.
    host, port : str, int
        The address to listen on.
    workers : int, default=1
        The number of processes; each has the whole model.
    """
    options = {
        "host": host,
        "port": port,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": _GRACE_SECONDS,
        "timeout_keep_alive": 30,
        "http": f"{__name__}:{LimitedProtocol.__name__}",
    }
    if workers == 1:
        uvicorn.run(create_app(model, url, settings), **options)  # type: ignore[arg-type]
        return
    arguments = {"model": str(model.resolve()), "store": url, "settings": settings.model_dump(mode="json")}
    supervisor.start(arguments, {**options, "workers": workers})


def from_environment() -> Application:
    """Create the application of a worker process from the arguments in the environment."""
    arguments: dict[str, Any] = json.loads(os.environ[supervisor.ENVIRONMENT])
    return create_app(arguments["model"], arguments["store"], ServiceSettings(**arguments["settings"]))
