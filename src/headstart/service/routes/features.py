"""Features: add, list, show, remove."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headstart.errors import StorageError
from headstart.service.answering import answer, changed, moment, service_of
from headstart.service.listing import FeatureIndex, Sort
from headstart.service.live.changes import AddFeature, RemoveFeature
from headstart.service.live.distribution import distribution
from headstart.service.live.history import history
from headstart.service.live.model import Snapshot
from headstart.service.problems import addressed
from headstart.service.schemas import NewFeature

router = APIRouter(prefix="/v1/features", tags=["features"])
_MOST_OBSERVATIONS = 1000  # that one feature shows


@router.post("", status_code=201, summary="Add a feature")
async def add(request: Request, body: NewFeature) -> Response:
    """Add a feature with its metadata and first observations; it can be predicted at once."""
    change = AddFeature(body.name, body.metadata, body.observations, body.kind)
    return await changed(request, change, status=201)


@router.get("", summary="List features")
def many(
    request: Request,
    search: Annotated[str, Query(max_length=200, description="A part of the name.")] = "",
    sort: Sort = "added",
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List features, page by page, with shots and uncertainty."""
    service = service_of(request)
    snapshot = service.snapshot
    index: FeatureIndex = request.app.state.indices.of(snapshot.shown)
    places = index.find(search, sort, descending=order == "desc")
    part = places[offset : offset + limit]
    unsure = index.uncertainty_of(part)
    times: dict[str, datetime] = {}
    with suppress(StorageError):  # a list without times is better than none
        times = service.store.times([index.names[place] for place in part.tolist()])
    lines = [
        _line(snapshot, index.names[place], own, times)
        for place, own in zip(part.tolist(), unsure.tolist(), strict=True)
    ]
    return answer(snapshot, {"total": len(places), "offset": offset, "features": lines})


def _line(snapshot: Snapshot, name: str, uncertainty: float, times: dict[str, datetime]) -> dict[str, Any]:
    feature = snapshot.shown.catalogue[name]
    return {
        "name": name,
        "kind": str(feature.kind),
        "shots": feature.shots,
        "uncertainty": uncertainty,
        "added": moment(times.get(name)),
    }


@router.get("/{name:name}", summary="Show a feature")
def one(request: Request, name: str) -> Response:
    """Show one feature: its kind, metadata, shots, uncertainty, observations and when it was added."""
    service = service_of(request)
    snapshot = service.snapshot
    with addressed():
        known = snapshot.model.feature(name)
    index: FeatureIndex = request.app.state.indices.of(snapshot.shown)
    place = np.array([index.place(known.name)])
    stored = None
    with suppress(StorageError):
        stored = service.store.feature(known.name)
    shown = dict(list(known.observations.items())[:_MOST_OBSERVATIONS])
    content = {
        "name": known.name,
        "kind": str(known.kind),
        "low": known.kind.low,
        "high": known.kind.high,
        "metadata": known.metadata,
        "shots": known.shots,
        "uncertainty": float(index.uncertainty_of(place)[0]),
        "fitted": stored is None,
        "fixed": known.fixed,
        "added": moment(stored.at if stored else None),
        "observations": shown,
    }
    return answer(snapshot, content)


@router.delete("/{name:name}", summary="Remove a feature")
async def remove(request: Request, name: str) -> Response:
    """Remove a feature and all that was observed of it."""
    return await changed(request, RemoveFeature(name), in_path=True)


@router.get("/{name:name}/history", summary="How a feature's predictions moved")
def past(request: Request, name: str) -> Response:
    """Show the mean prediction and its uncertainty over rows after each number of observations."""
    service = service_of(request)
    snapshot = service.snapshot
    with addressed():
        known = snapshot.shown.catalogue[name].name
    arrived = service.store.observations_of(known)
    points = history(snapshot.state, known, [cell.row for cell, _ in arrived])
    return answer(snapshot, {"feature": known, "history": points})


@router.get("/{name:name}/distribution", summary="How a feature's predictions are distributed")
def spread(request: Request, name: str) -> Response:
    """Count the predicted means over rows: a histogram, its mean, and the mean uncertainty."""
    snapshot = service_of(request).snapshot
    with addressed():
        known = snapshot.shown.catalogue[name].name
    return answer(snapshot, {"feature": known, **distribution(snapshot.state, known)})
