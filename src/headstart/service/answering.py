"""Answers: JSON that is written once, with the model that made it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from headstart.service.live.changes import Change
from headstart.service.live.model import Snapshot
from headstart.service.live.writer import Receipt
from headstart.service.problems import Problem, addressed
from headstart.service.service import Service

MODEL_HEADER, NUMBER_HEADER = "x-headstart-model", "x-headstart-number"
MAX_KEY = 255


class _NameConvertor(Convertor[str]):
    """A name in an address: one segment, in which everything may be percent-encoded, ``/`` too."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "the address has bytes that are not valid UTF-8") from None

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _NameConvertor())


def service_of(request: Request) -> Service:
    """The service that a request is made to."""
    return request.app.state.service  # type: ignore[no-any-return]


def answer(snapshot: Snapshot, content: dict[str, Any], status: int = 200) -> Response:
    """An answer that says which model made it."""
    number = str(snapshot.state.number)
    body = to_json(
        {"model": snapshot.identity, "number": snapshot.state.number, **content}, inf_nan_mode="null"
    )
    headers = {MODEL_HEADER: snapshot.identity, NUMBER_HEADER: number}
    return Response(body, status, headers, "application/json")


def moment(at: datetime | None) -> str | None:
    """A time as text; databases without time zones hold UTC."""
    if at is None:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def idempotency_key(request: Request) -> str | None:
    """The key of a request that may be sent twice and must count once."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise Problem(400, f"an Idempotency-Key has 1 to {MAX_KEY} printable characters")
    return f"{request.url.path} {key}"[-MAX_KEY:]


async def changed(request: Request, change: Change, *, status: int = 200, in_path: bool = False) -> Response:
    """Make a change and answer when it is committed."""
    service, key = service_of(request), idempotency_key(request)
    body = await request.body() if key is not None else b""
    waiting = asyncio.wrap_future(service.change(change, key, body))
    if in_path:
        with addressed():
            receipt = await waiting
    else:
        receipt = await waiting
    return _receipt(service.snapshot, receipt, status)


def _receipt(snapshot: Snapshot, receipt: Receipt, status: int) -> Response:
    content = dict(receipt.answer)
    if receipt.planned is not None and receipt.planned.warning is not None:
        content["warning"] = receipt.planned.warning
    response = answer(snapshot, content, status)
    if receipt.repeated:
        response.headers["idempotency-replayed"] = "true"
    return response
