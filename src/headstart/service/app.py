"""Assemble the application: endpoints, page and documentation behind the guard."""

from __future__ import annotations

import html
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from headstart import __version__
from headstart.service.auth import Guard
from headstart.service.errors import MEDIA_TYPE, SCHEMA, install
from headstart.service.routes import (
    admin,
    features,
    observations,
    operations,
    predict,
    predictions,
    rankings,
    rows,
)
from headstart.service.schemas import Predict
from headstart.service.views import IndexCache
from headstart.service.worker import Service, ServiceSettings


async def documentation(request: Request) -> HTMLResponse:
    """Show every endpoint with its parameters and body."""
    document: dict[str, Any] = request.app.openapi()
    parts = [
        _operation(path, method, each)
        for path, own in document["paths"].items()
        for method, each in own.items()
    ]
    schemas = [_schema(name, each) for name, each in sorted(document["components"]["schemas"].items())]
    title = f"{_text(document['info']['title'])} {_text(document['info']['version'])}: API"
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head><body>'
        f"<h1>{title}</h1><p>The same for programs: <a href='/openapi.json'>openapi.json</a>.</p>"
        f"<h2>Endpoints</h2>{''.join(parts)}<h2>Bodies</h2>{''.join(schemas)}</body></html>"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = "".join(
        f"<li><code>{_text(each['name'])}</code> ({_text(each['in'])}): {_text(_form(each['schema']))}</li>"
        for each in operation.get("parameters", [])
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    body = f"<p>Body: <a href='#{_text(reference)}'>{_text(reference)}</a></p>" if reference else ""
    return (
        f"<section><h3><code>{method.upper()} {_text(path)}</code></h3>"
        f"<p>{_text(operation.get('description') or operation.get('summary', ''))}</p>"
        f"{f'<ul>{lines}</ul>' if lines else ''}{body}</section>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    shown = json.dumps(schema, indent=2, ensure_ascii=False)
    return f"<section id='{_text(name)}'><h3>{_text(name)}</h3><pre>{_text(shown)}</pre></section>"


def _form(schema: dict[str, Any]) -> str:
    words = [
        schema.get("type", ""),
        *(f"{key} {schema[key]}" for key in ("enum", "default") if key in schema),
    ]
    return ", ".join(word for word in words if word)


def _text(given: object) -> str:
    return html.escape(str(given), quote=True)


PAGE = Path(__file__).parent / "page"

ENVIRONMENT = "HEADSTART_SERVE"  # settings for workers that are processes of their own

_ROUTERS = (features, rows, observations, predictions, rankings, admin, operations)


class Application:
    """An ASGI application that serves a model.

    Attributes
    ----------
    service : Service
        The worker behind it.
    api : FastAPI
        The endpoints, without the guard.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.api = _api(service)
        self._predict = SimpleNamespace(path="/v1/predict")  # the name of the endpoint, for metrics
        self._guard = Guard(self._dispatch, service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            # Names may contain a slash: addresses are matched as they were sent, and names decoded after.
            raw = scope.get("raw_path", b"").split(b"?")[0]
            if raw.startswith(b"/v1/"):
                scope = {**scope, "path": raw.decode("latin-1")}
        await self._guard(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the framework find the endpoint; but its way costs more than a small prediction."""
        if scope["type"] == "http" and scope["path"] == "/v1/predict" and scope["method"] == "POST":
            scope["route"], scope["app"] = self._predict, self.api
            await (await predict(Request(scope, receive)))(scope, receive, send)
            return
        await self.api(scope, receive, send)


def create_app(model: str | Path, store: str, settings: ServiceSettings | None = None) -> Application:
    """Make the application that serves a model.

    Parameters
    ----------
    model : str or Path
        The folder of a fitted model; it is only read.
    store : str
        The URL of the store, as ``sqlite:///store.db`` or ``postgresql://user@host/database``.
    settings : ServiceSettings, default=None
        What is allowed.

    Returns
    -------
    Application
        For any ASGI server.
    """
    return Application(Service(Path(model).resolve(), store, settings or ServiceSettings()))


def from_environment() -> Application:
    """Make the application that ``headstart serve`` describes in the environment, in each of its workers."""
    import json

    given: dict[str, Any] = json.loads(os.environ[ENVIRONMENT])
    return create_app(given["model"], given["store"], ServiceSettings(**given["settings"]))


def _api(service: Service) -> FastAPI:
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
    )
    api.state.service, api.state.indices = service, IndexCache()
    install(api)
    for each in _ROUTERS:
        api.include_router(each)
    api.openapi = lambda: _document(api)  # type: ignore[method-assign]
    api.add_route("/docs", documentation, include_in_schema=False)
    if PAGE.is_dir():
        api.mount("/", StaticFiles(directory=PAGE, html=True), name="page")
    return api


def _document(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: every error is a problem, and tokens may be needed."""
    if api.openapi_schema:
        return api.openapi_schema
    made = get_openapi(title=api.title, version=api.version, description=api.description, routes=api.routes)
    parts = made.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    predict = Predict.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= {**predict.pop("$defs", {}), "Predict": predict}
    schemas["Problem"] = SCHEMA
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{}, {"token": []}]
    problem = {
        "description": "A problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for path in made["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = problem
            operation["responses"]["503"] = problem
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    api.openapi_schema = made
    return made


_GRACE_SECONDS = 20  # for requests that are being answered when the service is asked to stop


def run(model: Path, url: str, settings: ServiceSettings, host: str, port: int, workers: int = 1) -> None:
    """Answer requests until the process is asked to stop (SIGTERM, Ctrl-C); begun requests are finished.

    Parameters
    ----------
    model : Path
        The folder of a fitted model.
    url : str
        The URL of the store.
    settings : ServiceSettings
        What is allowed.
    host, port : str, int
        Where to listen.
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
    }
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    if workers == 1:
        uvicorn.run(create_app(model, url, settings), **options)  # type: ignore[arg-type]
        return
    given = {"model": str(model.resolve()), "store": url, "settings": settings.model_dump(mode="json")}
    with tempfile.TemporaryDirectory(prefix="headstart-metrics-") as folder:
        os.environ |= {
            ENVIRONMENT: json.dumps(given),
            "PROMETHEUS_MULTIPROC_DIR": folder,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
        factory = "headstart.service.app:from_environment"
        uvicorn.run(factory, factory=True, workers=workers, **options)  # type: ignore[arg-type]
