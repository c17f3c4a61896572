"""The application: endpoints, page and documentation behind the guard."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from headstart import __version__
from headstart.service import problems
from headstart.service.documentation import documentation
from headstart.service.listing import IndexCache
from headstart.service.routes import admin, features, health, observations, predicting, ranking, rows
from headstart.service.schemas import Predict
from headstart.service.security import Guard
from headstart.service.service import Service
from headstart.service.settings import ServiceSettings

PAGE = Path(__file__).parent / "page"
ENVIRONMENT = "HEADSTART_SERVE"  # settings for workers that are processes of their own
_ROUTERS = (features, rows, observations, predicting, ranking, admin, health)


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
            await (await predicting.predict(Request(scope, receive)))(scope, receive, send)
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
    problems.install(api)
    for each in _ROUTERS:
        api.include_router(each.router)
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
    schemas["Problem"] = problems.SCHEMA
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{}, {"token": []}]
    problem = {
        "description": "A problem",
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = problem
            operation["responses"]["503"] = problem
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    api.openapi_schema = made
    return made
