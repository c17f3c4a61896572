"""Observations: one or many."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from headstart.service.answering import changed, service_of
from headstart.service.live.changes import Observe
from headstart.service.problems import Problem
from headstart.service.schemas import NewObservations

router = APIRouter(prefix="/v1/observations", tags=["observations"])


@router.post("", summary="Take observations")
async def observe(request: Request, body: NewObservations) -> Response:
    """Take observations of rows and features; all of them, or none if one cannot be taken.

    With the header ``Idempotency-Key`` a request that is sent again counts once.
    """
    most = service_of(request).settings.max_batch
    if len(body.observations) > most:
        raise Problem(413, f"at most {most:,} observations fit into one request", "/observations")
    triples = [(each.row, each.feature, each.value) for each in body.observations]
    return await changed(request, Observe(triples))
