"""Define the endpoints of the service."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import PlainTextResponse, Response

from headstart.errors import StorageError
from headstart.model.prediction import Prediction, predict_one_cell
from headstart.model.ranking import Ranking
from headstart.model.row_states import observations_of_row
from headstart.service.changes import AddFeature, AddRow, Change, Observe, Receipt, RemoveFeature, RemoveRow
from headstart.service.errors import Problem, error_at, not_found, of_validation
from headstart.service.live_model import Snapshot
from headstart.service.schemas import (
    Audience,
    Explain,
    NewFeature,
    NewObservations,
    NewRow,
    Predict,
    Recommend,
    Similar,
    Suggest,
    TakeOver,
)
from headstart.service.views import FeatureIndex, Sort, distribution, history
from headstart.service.worker import Service, ServiceSettings
from headstart.table import MetadataSchema
from headstart.table.kinds import KindType
from headstart.training.calibration import LEVELS

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
        with not_found():
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


operations = APIRouter(tags=["operation"])


@operations.get("/health", summary="Alive")
async def health() -> Response:
    """Say that the process answers."""
    return Response(to_json({"status": "alive"}), media_type="application/json")


@operations.get("/ready", summary="Ready")
def ready(request: Request) -> Response:
    """Say whether a model is loaded and the store can be reached; otherwise 503."""
    service = service_of(request)
    service.ready()
    return answer(service.snapshot, {"status": "ready"})


@operations.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
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


features = APIRouter(prefix="/v1/features", tags=["features"])

_MOST_OBSERVATIONS = 1000  # that one feature shows


@features.post("", status_code=201, summary="Add a feature")
async def add_feature(request: Request, body: NewFeature) -> Response:
    """Add a feature with its metadata and first observations; it can be predicted at once."""
    change = AddFeature(body.name, body.metadata, body.observations, body.kind, body.time)
    return await changed(request, change, status=201)


@features.get("", summary="List features")
def list_features(
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


@features.get("/{name:name}", summary="Show a feature")
def show_feature(request: Request, name: str) -> Response:
    """Show one feature: its kind, metadata, shots, uncertainty, observations and when it was added."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        known = snapshot.model.feature(name)
    index: FeatureIndex = request.app.state.indices.of(snapshot.shown)
    place = np.array([index.position(known.name)])
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


@features.delete("/{name:name}", summary="Remove a feature")
async def remove_feature(request: Request, name: str) -> Response:
    """Remove a feature and all its observations."""
    return await changed(request, RemoveFeature(name), in_path=True)


@features.get("/{name:name}/history", summary="How a feature's predictions moved")
def past(request: Request, name: str) -> Response:
    """Show the mean prediction and its uncertainty over rows after each number of observations."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        known = snapshot.shown.catalogue[name].name
    arrived = service.store.observations_of(known)
    points = history(snapshot.state, known, [cell.row for cell, _ in arrived])
    return answer(snapshot, {"feature": known, "history": points})


@features.get("/{name:name}/distribution", summary="How a feature's predictions are distributed")
def spread(request: Request, name: str) -> Response:
    """Count the predicted means over rows: a histogram, its mean, and the mean uncertainty."""
    snapshot = service_of(request).snapshot
    with not_found():
        known = snapshot.shown.catalogue[name].name
    return answer(snapshot, {"feature": known, **distribution(snapshot.state, known)})


rows = APIRouter(prefix="/v1/rows", tags=["rows"])


@rows.post("", status_code=201, summary="Add a row")
async def add_row(request: Request, body: NewRow) -> Response:
    """Add a row with its first observations; it can be predicted at once."""
    change = AddRow(body.name, body.metadata, body.observations, body.time)
    return await changed(request, change, status=201)


@rows.get("", summary="List rows")
def list_rows(
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


@rows.get("/{name:name}", summary="Show a row")
def show_row(request: Request, name: str) -> Response:
    """Show one row: its metadata and what it observed."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        place = snapshot.shown.rows.position(name)
    state = snapshot.state
    own = observations_of_row(state.model, place)
    features = state.model.catalogue.names_by_number(own.keys)
    observed = {
        feature: value
        for feature, value in zip(features, own.values.tolist(), strict=True)
        if feature is not None
    }
    held = state.model.row_metadata
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


@rows.delete("/{name:name}", summary="Remove a row")
async def remove_row(request: Request, name: str) -> Response:
    """Remove a row: its observations leave every feature, and the store keeps nothing of it."""
    return await changed(request, RemoveRow(name), in_path=True)


observations = APIRouter(prefix="/v1/observations", tags=["observations"])


@observations.post("", summary="Add observations")
async def observe(request: Request, body: NewObservations) -> Response:
    """Add observations of rows and features; all of them, or none if one is invalid.

    With the header ``Idempotency-Key`` a request that is sent again counts once.
    """
    most = service_of(request).settings.max_batch
    if len(body.observations) > most:
        raise Problem(413, f"at most {most:,} observations fit into one request", "/observations")
    triples: list[tuple[Any, ...]] = [
        (each.row, each.feature, each.value, *(() if each.time is None else (each.time,)))
        for each in body.observations
    ]
    return await changed(request, Observe(triples))


predictions = APIRouter(prefix="/v1", tags=["questions"])

ARROW = "application/vnd.apache.arrow.stream"

_SMALL = 16  # cells of known rows: predicted at once, without the way through a thread

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Predict"}}},
    }
}


@predictions.post(
    "/predict",
    summary="Predict rows × features",
    openapi_extra=_BODY,
    responses={200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def predict(request: Request) -> Response:
    """Predict the values of rows at features: mean, standard deviation and interval of every cell.

    With ``Accept: application/vnd.apache.arrow.stream`` the answer is an Arrow table, one line for each cell.
    """
    # The body is read here and not by the framework, whose way costs more than a small prediction.
    try:
        body = Predict.model_validate_json(await request.body())
    except ValidationError as error:
        return of_validation(error.errors(include_url=False, include_context=False, include_input=False))
    service = service_of(request)
    snapshot, arrow = service.snapshot, ARROW in request.headers.get("accept", "")
    if isinstance(body.rows, list) and len(body.rows) * len(body.features) <= _SMALL:
        return _predicted(snapshot, body, service.settings, arrow=arrow)
    return await run_in_threadpool(_predicted, snapshot, body, service.settings, arrow=arrow)


def _predicted(snapshot: Snapshot, body: Predict, settings: ServiceSettings, *, arrow: bool) -> Response:
    cells = len(body.rows) * len(body.features)
    if cells > settings.max_cells:
        raise Problem(
            413, f"{cells:,} cells are too many for one call (at most {settings.max_cells:,})", "/rows"
        )
    for field, names in (("/rows", body.rows), ("/features", body.features)):
        if len({*names}) < len(names):
            raise Problem(422, f"{field[1:]} are named twice; name each once", field)
    with error_at("/features"):
        for name in body.features:
            snapshot.shown.catalogue[name]
    if cells <= _SMALL and isinstance(body.rows, list) and body.form == "cells" and not arrow:
        return answer(snapshot, _cells(snapshot, body.rows, body))
    with error_at("/rows"):
        predicted = snapshot.model.predict(body.rows, body.features)
    if arrow:
        return _arrow(snapshot, predicted, body.level)
    return answer(snapshot, _content(predicted, body))


def _cells(snapshot: Snapshot, rows: list[str], body: Predict) -> dict[str, Any]:
    """A few cells, one by one."""
    lines = []
    for row in rows:
        with error_at("/rows"):
            snapshot.shown.rows.position(row)
        for feature in body.features:
            mean, std, low, high = predict_one_cell(snapshot.shown, row, feature, body.level)
            lines.append({"row": row, "feature": feature, "mean": mean, "std": std, "low": low, "high": high})
    return {"level": body.level, "predictions": lines}


def _content(predicted: Prediction, body: Predict) -> dict[str, Any]:
    low, high = predicted.interval(body.level)
    parts = {"mean": predicted.mean, "std": predicted.std, "low": low, "high": high}
    if body.form == "arrays":
        arrays = {name: part.tolist() for name, part in parts.items()}
        return {
            "level": body.level,
            "rows": list(predicted.rows),
            "features": list(predicted.features),
            **arrays,
        }
    numbers = zip(*(part.ravel().tolist() for part in parts.values()), strict=True)
    names = ((row, feature) for row in predicted.rows for feature in predicted.features)
    lines = [
        {"row": row, "feature": feature, "mean": mean, "std": std, "low": down, "high": up}
        for (row, feature), (mean, std, down, up) in zip(names, numbers, strict=True)
    ]
    return {"level": body.level, "predictions": lines}


def _arrow(snapshot: Snapshot, predicted: Prediction, level: float) -> Response:
    sink = pa.BufferOutputStream()
    table = predicted.to_arrow(level)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = {MODEL_HEADER: snapshot.identity, NUMBER_HEADER: str(snapshot.state.number)}
    return Response(sink.getvalue().to_pybytes(), 200, headers, ARROW)


rankings = APIRouter(prefix="/v1", tags=["questions"])


@rankings.post("/recommend", summary="Rank features for a row")
def recommend(request: Request, body: Recommend) -> Response:
    """Rank features for a row, best first."""
    snapshot = service_of(request).snapshot
    with error_at("/row"):
        snapshot.model.predict(_asked(body.row), snapshot.model.features[:1])
    with error_at("/features"):
        ranking = snapshot.model.recommend(
            body.row,
            body.n,
            body.features,
            by=body.by,
            exclude_observed=body.exclude_observed,
            quantile=body.quantile,
            mixed_kinds=body.mixed_kinds,
            level=body.level,
        )
    return answer(snapshot, _ranking(ranking))


def _asked(row: str | dict[str, float]) -> Any:
    return [row] if isinstance(row, str) else {"row": row}


def _knowing(request: Request, feature: str) -> Snapshot:
    """The present model, if it has this feature."""
    snapshot = service_of(request).snapshot
    with error_at("/feature"):
        snapshot.shown.catalogue[feature]
    return snapshot


@rankings.post("/audience", summary="Rank rows for a feature")
def audience(request: Request, body: Audience) -> Response:
    """Rank rows for a feature, best first."""
    snapshot = _knowing(request, body.feature)
    with error_at("/rows"):
        ranking = snapshot.model.audience(
            body.feature,
            body.n,
            body.rows,
            by=body.by,
            exclude_observed=body.exclude_observed,
            quantile=body.quantile,
            level=body.level,
        )
    return answer(snapshot, _ranking(ranking))


def _ranking(ranking: Ranking) -> dict[str, Any]:
    arrays = (ranking.score, ranking.mean, ranking.std, ranking.low, ranking.high)
    lines = zip(ranking.names, *(array.tolist() for array in arrays), strict=True)
    fields = (ranking.noun, "score", "mean", "std", "low", "high")
    ranked = [dict(zip(fields, line, strict=True)) for line in lines]
    return {"of": ranking.of, "by": ranking.by, "level": ranking.level, "ranking": ranked}


@rankings.post("/suggest", summary="Suggest rows to observe next")
def suggest(request: Request, body: Suggest) -> Response:
    """Return the rows whose observations would inform most about a feature."""
    snapshot = _knowing(request, body.feature)
    with error_at("/rows"):
        rows = snapshot.model.suggest(body.feature, body.n, body.rows)
    return answer(snapshot, {"feature": body.feature, "rows": rows})


@rankings.post("/similar", summary="Find similar features")
def similar(request: Request, body: Similar) -> Response:
    """Return the features whose predictions correlate most with those of one feature."""
    snapshot = service_of(request).snapshot
    with error_at("/feature"):
        found = snapshot.model.similar(body.feature, body.n)
    lines = [{"feature": name, "similarity": value} for name, value in found]
    return answer(snapshot, {"feature": found.feature, "similar": lines})


@rankings.post("/explain", summary="Explain a prediction")
def explain(request: Request, body: Explain) -> Response:
    """Split a prediction into contributions of observations and metadata that add up to it."""
    snapshot = service_of(request).snapshot
    with error_at("/feature"):
        snapshot.shown.catalogue[body.feature]
    with error_at("/row"):
        found = snapshot.model.explain(body.row, body.feature)
    parts = [
        {
            "source": each.source,
            "name": each.name,
            "given": each.given if isinstance(each.given, (str, int, float, bool, list)) else None,
            "label": each.label,
            "value": each.value,
        }
        for each in found.largest(body.n)
    ]
    content = {
        "row": found.row,
        "feature": found.feature,
        "unit": found.unit,
        "baseline": found.baseline,
        "output": found.output,
        "mean": found.mean,
        "contributions": parts,
    }
    return answer(snapshot, content)


admin = APIRouter(prefix="/v1", tags=["model"])

_BUCKETS = 60  # of surprise over time


@admin.get("/model", summary="Which model is served")
def model(request: Request) -> Response:
    """Say which model is served, what it is made of and how much has arrived."""
    snapshot = service_of(request).snapshot
    info, state = snapshot.model.info, snapshot.state
    content = {
        "backbone": info.backbone,
        "adapter": info.adapter,
        "rows": info.rows,
        "features": info.features,
        "added_features": info.features - state.own_features,
        "added_rows": info.rows - state.own_rows,
        "left_out": state.left_out,
        "kinds": [str(kind) for kind in snapshot.shown.kinds[:20]],
        "metadata": info.metadata,
    }
    return answer(snapshot, content)


@admin.post("/model", summary="Take over another fitted model")
def take_over(request: Request, body: TakeOver) -> Response:
    """Serve the fitted model of another folder, with everything that arrived; no answer is interrupted."""
    with error_at("/path"):
        snapshot = service_of(request).take_over(Path(body.path).resolve())
    return answer(snapshot, {"left_out": snapshot.state.left_out})


@admin.get("/schema", summary="The metadata of features and rows")
def schema(request: Request) -> Response:
    """Say which metadata columns features and rows have, with the values to suggest."""
    snapshot = service_of(request).snapshot
    fitted = snapshot.shown
    held = fitted.row_metadata
    content = {
        "features": _columns(fitted.schema),
        "rows": _columns(None if held is None else held.schema),
        "kinds": sorted({str(kind) for kind in fitted.kinds if kind.type != KindType.REAL})[:100]
        + (["real"] if any(kind.type == KindType.REAL for kind in fitted.kinds) else []),
        "usual_kind": str(fitted.kinds[0]),
    }
    return answer(snapshot, content)


def _columns(schema: MetadataSchema | None) -> list[dict[str, Any]]:
    columns = [] if schema is None else schema.columns
    fields = ("values", "low", "high", "mean")
    return [
        {"name": column.name, "type": column.spec.partition(":")[0]}
        | {name: _plain(getattr(column, name)) for name in fields if hasattr(column, name)}
        for column in columns
    ]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@admin.get("/quality", summary="How good predictions are")
def quality(request: Request) -> Response:
    """Show the errors to expect by shots, the calibration, and the surprise of what arrives over time."""
    service = service_of(request)
    snapshot = service.snapshot
    info = snapshot.model.info
    curve = [
        {"shots": each.shots, "error": each.error, "standard_error": each.standard_error}
        for each in info.errors
    ]
    parts = [_surprise(each) for each in service.store.surprises(_BUCKETS)]
    content = {
        "judged_on": info.judged_on,
        "curve": curve,
        "calibration": _calibration(snapshot),
        "metadata": info.metadata,
        "surprise": parts,
        "staleness": _staleness(snapshot, parts),
    }
    return answer(snapshot, content)


def _calibration(snapshot: Snapshot) -> dict[str, Any]:
    held, present = snapshot.shown.calibration, {kind.type for kind in snapshot.shown.kinds}
    return {
        "shots": held.marks.tolist(),
        "levels": list(LEVELS),
        "factors": {kind.name.lower(): held.factors[kind].tolist() for kind in KindType if kind in present},
        "slopes": held.slopes.tolist(),
        "shifts": held.shifts.tolist(),
    }


def _surprise(part: dict[str, Any]) -> dict[str, Any]:
    count = max(1, int(part["observations"]))
    mean = part["excess"] / count
    error = math.sqrt(max(0.0, part["squares"] / count - mean**2) / count)
    return {
        "first": moment(part["first"]),
        "last": moment(part["last"]),
        "observations": int(part["observations"]),
        "excess": mean,
        "standard_error": error,
    }


def _staleness(snapshot: Snapshot, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """All parts together, as ``Headstart.staleness`` says it."""
    from headstart.model.state import ErrorSums, staleness_of

    count = sum(each["observations"] for each in parts)
    total = sum(each["observations"] * each["excess"] for each in parts)
    squares = sum(
        each["observations"] * (each["excess"] ** 2 + each["observations"] * each["standard_error"] ** 2)
        for each in parts
    )
    said = staleness_of(ErrorSums(count, total, squares), len(snapshot.shown.knowledge.cells.index))
    return {
        "observations": said.observations,
        "growth": said.growth,
        "excess": said.excess,
        "standard_error": said.standard_error,
        "refit": said.refit,
        "text": str(said),
    }
