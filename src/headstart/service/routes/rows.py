"""Rows: add, show, forget."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from headstart.errors import StorageError
from headstart.model.parts.describing import observations_of_row
from headstart.service.answering import answer, changed, moment, service_of
from headstart.service.live.changes import AddRow, ForgetRow
from headstart.service.problems import addressed
from headstart.service.schemas import NewRow

router = APIRouter(prefix="/v1/rows", tags=["rows"])


@router.post("", status_code=201, summary="Add a row")
async def add(request: Request, body: NewRow) -> Response:
    """Add a row with its first observations; it can be predicted at once."""
    return await changed(request, AddRow(body.name, body.metadata, body.observations), status=201)


@router.get("", summary="List rows")
def many(
    request: Request,
    search: Annotated[str, Query(max_length=200, description="A part of the name.")] = "",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the names of rows, page by page."""
    snapshot = service_of(request).snapshot
    folded = search.casefold().strip()
    names = [name for name in snapshot.shown.rows if not folded or folded in name.casefold()]
    return answer(snapshot, {"total": len(names), "offset": offset, "rows": names[offset : offset + limit]})


@router.get("/{name:name}", summary="Show a row")
def one(request: Request, name: str) -> Response:
    """Show one row: its metadata and what it observed."""
    service = service_of(request)
    snapshot = service.snapshot
    with addressed():
        place = snapshot.shown.rows.position(name)
    state = snapshot.state
    own = state.shown.roster.observations(place)
    if own is None:
        own = observations_of_row(state.origin, place)
    features = state.base.catalogue.names_by_number(own.numbers)
    observed = {
        feature: value
        for feature, value in zip(features, own.values.tolist(), strict=True)
        if feature is not None
    }
    held = state.shown.row_metadata
    lines = {} if held is None else held.lines.slice(place, 1).to_pylist()[0]
    stored = None
    with suppress(StorageError):
        stored = service.store.row(snapshot.shown.rows[place])
    content = {
        "name": snapshot.shown.rows[place],
        "metadata": {key: value for key, value in lines.items() if value is not None},
        "observations": observed,
        "fitted": place < state.own_rows,
        "added": moment(stored.at if stored else None),
    }
    return answer(snapshot, content)


@router.delete("/{name:name}", summary="Forget a row")
async def forget(request: Request, name: str) -> Response:
    """Forget a row: its observations leave every feature and the store, and nothing of it is kept."""
    return await changed(request, ForgetRow(name), in_path=True)
