"""Whether the service is alive, ready, and how it does."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import PlainTextResponse, Response

from headstart.service.answering import answer, service_of
from headstart.service.live.model import Snapshot
from headstart.service.problems import Problem

router = APIRouter(tags=["operation"])


@router.get("/health", summary="Alive")
async def health() -> Response:
    """Say that the process answers."""
    return Response(to_json({"status": "alive"}), media_type="application/json")


@router.get("/ready", summary="Ready")
def ready(request: Request) -> Response:
    """Say whether a model is loaded and the store can be reached; otherwise 503."""
    service = service_of(request)
    service.ready()
    return answer(service.snapshot, {"status": "ready"})


@router.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Give requests, latency, adaptation time, shots and surprise in the text form of Prometheus."""
    service = service_of(request)
    snapshot: Snapshot | None = None
    try:
        snapshot = service.snapshot
    except Problem:
        snapshot = None
    content, kind = service.metrics.text(snapshot)
    return Response(content, media_type=kind)
