"""Read the parts of requests, submit their changes, and write answers."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response

from headstart.service.changes import Change
from headstart.service.errors import Problem, not_found
from headstart.service.live_model import Snapshot
from headstart.service.schemas import Body
from headstart.service.worker import Service

MAX_KEY = 1000  # characters of an idempotency key


def service_of(request: Request) -> Service:
    """Return the service that answers a request."""
    return request.app.state.service  # type: ignore[no-any-return]


def answer(snapshot: Snapshot, content: dict[str, Any], status: int = 200) -> Response:
    """Return a response with the identity of the model and the number of its last change."""
    body = to_json(
        {"model": snapshot.identity, "number": snapshot.state.number, **content}, inf_nan_mode="null"
    )
    return Response(body, status, model_headers(snapshot), "application/json")


def model_headers(snapshot: Snapshot) -> dict[str, str]:
    """Return the headers with the identity of the model and the number of its last change."""
    return {"x-headstart-model": snapshot.identity, "x-headstart-number": str(snapshot.state.number)}


def format_time(at: datetime | None) -> str | None:
    """Return a time as text. A time without zone, as SQLite returns it, is in UTC."""
    if at is None:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def idempotency_key(request: Request) -> str | None:
    """Return the idempotency key of a request with its method and path; None if the request has no key."""
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not 0 < len(keys[0]) <= MAX_KEY or not keys[0].isprintable():
        raise Problem(400, f"a request has one Idempotency-Key, of 1 to {MAX_KEY:,} printable characters")
    return f"{request.method} {request.scope['path']} {keys[0]}"  # method and path have no spaces


BodyT = TypeVar("BodyT", bound=Body)


async def read_body(request: Request, schema: type[BodyT]) -> BodyT:
    """Parse and validate the body of a request, in less time than FastAPI would need."""
    try:
        return schema.model_validate_json(await request.body())
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(details) from None


def document_body(schema: type[Body]) -> dict[str, Any]:
    """Return the part of the OpenAPI document about a body that ``read_body`` parses."""
    reference = {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}
    return {"requestBody": {"required": True, "content": {"application/json": reference}}}


async def commit(request: Request, change: Change, *, status: int = 200, in_path: bool = False) -> Response:
    """Submit a change, and respond when it is committed.

    ``in_path`` says that the path has the name of the feature or row, so that an unknown name is a 404.
    """
    service, key = service_of(request), idempotency_key(request)
    body = await request.body() if key is not None else b""
    future = asyncio.wrap_future(service.change(change, key, body))
    with not_found() if in_path else nullcontext():
        receipt = await future
    content = dict(receipt.answer)
    if receipt.plan is not None and receipt.plan.warning is not None:
        content["warning"] = receipt.plan.warning
    response = answer(service.snapshot, content, status)
    if receipt.repeated:
        response.headers["idempotency-replayed"] = "true"
    return response
