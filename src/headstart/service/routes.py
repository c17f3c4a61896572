"""Define the endpoints of the service, in one router for each group.

Handlers check names and bodies, call the methods of ``Headstart`` on a snapshot, or submit a change.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import PlainTextResponse, Response

from headstart.display import plural
from headstart.errors import StorageError
from headstart.model.cell_predictions import predict_one_cell
from headstart.model.imputation import with_levels
from headstart.model.levels import category_columns
from headstart.model.prediction import NOT_APPLICABLE, Prediction
from headstart.model.ranking import Ranking
from headstart.model.staleness import ErrorSums, staleness_of
from headstart.model.summary import ExpectedError
from headstart.model.titles import feature_titles
from headstart.service.changes import AddFeature, AddRow, Observe, RemoveFeature, RemoveRow
from headstart.service.errors import Problem, error_at, not_found
from headstart.service.live_model import Snapshot
from headstart.service.messages import (
    answer,
    commit,
    document_body,
    format_time,
    model_headers,
    read_body,
    service_of,
)
from headstart.service.schemas import (
    Audience,
    Explain,
    Impute,
    NewFeature,
    NewObservations,
    NewRow,
    Predict,
    Recommend,
    Sample,
    Similar,
    Suggest,
    TakeOver,
)
from headstart.service.store import ErrorBucket
from headstart.service.views import FeatureIndex, Sort, distribution, history
from headstart.service.worker import Service, ServiceSettings
from headstart.table import Kind, MetadataSchema
from headstart.table.kinds import KindType, split_column
from headstart.table.labels import LEVEL
from headstart.table.margins import Category
from headstart.training.calibration import LEVELS


class _NameConvertor(Convertor[str]):
    """Converts a name in a path: one segment, in which all characters may be percent-encoded, also ``/``."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "the address has bytes that are not valid UTF-8") from None

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("name", _NameConvertor())


operations = APIRouter(tags=["operation"])


@operations.get("/health", summary="Alive")
async def health() -> Response:
    """Respond while the process runs."""
    return Response(to_json({"status": "alive"}), media_type="application/json")


@operations.get("/ready", summary="Ready")
def ready(request: Request) -> Response:
    """Respond with 200 if a model is loaded and the store can be reached, otherwise with 503."""
    service = service_of(request)
    service.ready()
    return answer(service.snapshot, {"status": "ready"})


@operations.get("/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Return requests, latency, time of changes, shots and surprise in the text format of Prometheus."""
    service = service_of(request)
    snapshot: Snapshot | None = None
    with suppress(Problem):  # without a model there are no counts of rows and features
        snapshot = service.snapshot
    content, media_type = service.metrics.text(snapshot)
    return Response(content, media_type=media_type)


features = APIRouter(prefix="/v1/features", tags=["features"])

_MAX_OBSERVATIONS = 1000  # in the answer of one feature


@features.post("", status_code=201, summary="Add a feature")
async def add_feature(request: Request, body: NewFeature) -> Response:
    """Add a feature with its metadata and first observations; it can be predicted at once."""
    change = AddFeature(
        body.name, body.metadata, body.observations, body.kind, body.time, body.levels, body.weight
    )
    return await commit(request, change, status=201)


@features.get("", summary="List features")
def list_features(
    request: Request,
    search: Annotated[str, Query(max_length=200, description="A part of the name or title.")] = "",
    sort: Sort = "added",
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List features, page by page, with shots, uncertainty and the prediction of an average row."""
    service = service_of(request)
    snapshot = service.snapshot
    index: FeatureIndex = request.app.state.indices.of(snapshot.model_state)
    positions = index.find(search, sort, descending=order == "desc")
    page = positions[offset : offset + limit]
    names = [index.names[position] for position in page.tolist()]
    times: dict[str, datetime] = {}
    with suppress(StorageError):  # a list without times is better than none
        first = {(category_columns(snapshot.model_state, name) or [name])[0]: name for name in names}
        times = {first[column]: at for column, at in service.store.times(list(first)).items()}
    lines = []
    titles = index.titles(page)
    titled = [{}] * len(names) if titles is None else [{"title": title} for title in titles]
    numbers = zip(names, titled, index.typical(page), index.uncertainty_of(page).tolist(), strict=True)
    for name, title, typical, uncertainty in numbers:
        kind, shots = _kind_and_shots(snapshot, name)
        line = {
            "name": name,
            **title,
            **typical,
            "kind": str(kind),
            "levels": _levels(kind),
            "shots": shots,
            "uncertainty": uncertainty,
            "added": format_time(times.get(name)),
        }
        lines.append(line)
    return answer(snapshot, {"total": len(positions), "offset": offset, "features": lines})


def _kind_and_shots(snapshot: Snapshot, name: str) -> tuple[Kind, int]:
    """Return the kind of a feature, of a category with its levels, and its number of observations."""
    feature_store, columns = snapshot.model_state.feature_store, category_columns(snapshot.model_state, name)
    if not columns:
        return feature_store[name].kind, feature_store[name].shots
    levels = tuple(split_column(column)[1] for column in columns)
    return Kind(Category(levels)), feature_store[columns[0]].shots


def _levels(kind: Kind) -> list[str] | None:
    """Return the levels of a kind with labels, for forms; None if its values are numbers."""
    margin = kind.margin
    return list(margin.names if isinstance(margin, Category) else margin.labels) or None


@features.get("/{name:name}", summary="Show a feature")
def show_feature(request: Request, name: str) -> Response:
    """Return one feature: its kind, metadata, shots, uncertainty, observations and time of addition."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        feature = snapshot.model.feature(name)
    index: FeatureIndex = request.app.state.indices.of(snapshot.model_state)
    stored = None
    with suppress(StorageError):
        columns = category_columns(snapshot.model_state, feature.name) or [feature.name]
        stored = service.store.feature(columns[0])
    content = {
        "name": feature.name,
        "title": _titles(snapshot, [feature.name]).get(feature.name, ""),
        "kind": str(feature.kind),
        "levels": _levels(feature.kind),
        "low": feature.kind.low,
        "high": feature.kind.high,
        "metadata": feature.metadata,
        "shots": feature.shots,
        "uncertainty": index.uncertainty_of_one(feature.name),
        "fitted": stored is None,
        "fixed": feature.fixed,
        "added": format_time(stored.at if stored else None),
        "observations": dict(list(feature.observations.items())[:_MAX_OBSERVATIONS]),
    }
    return answer(snapshot, content)


@features.delete("/{name:name}", summary="Remove a feature")
async def remove_feature(request: Request, name: str) -> Response:
    """Remove a feature and all its observations."""
    return await commit(request, RemoveFeature(name), in_path=True)


@features.get("/{name:name}/history", summary="How a feature's predictions moved")
def show_history(request: Request, name: str) -> Response:
    """Return the mean prediction and its uncertainty over rows after each number of observations."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        feature = snapshot.model_state.feature_store[name].name
    observations = service.store.observations_of(feature)
    points = history(snapshot.state, feature, [cell.row for cell, _ in observations])
    return answer(snapshot, {"feature": feature, "history": points})


@features.get("/{name:name}/distribution", summary="How a feature's predictions are distributed")
def show_distribution(request: Request, name: str) -> Response:
    """Return a histogram of the predicted means over rows, its mean, and the mean uncertainty."""
    snapshot = service_of(request).snapshot
    with not_found():
        feature = snapshot.model.feature(name).name
    return answer(snapshot, {"feature": feature, **distribution(snapshot.state, feature)})


rows = APIRouter(prefix="/v1/rows", tags=["rows"])


@rows.post("", status_code=201, summary="Add a row")
async def add_row(request: Request, body: NewRow) -> Response:
    """Add a row with its first observations; it can be predicted at once."""
    change = AddRow(body.name, body.metadata, body.observations, body.time)
    return await commit(request, change, status=201)


@rows.get("", summary="List rows")
def list_rows(
    request: Request,
    search: Annotated[str, Query(max_length=200, description="A part of the name or title.")] = "",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List the names of rows, page by page, with their titles if there are any."""
    snapshot = service_of(request).snapshot
    text = search.strip()
    names = snapshot.model.find_rows(text) if text else list(snapshot.model_state.rows)
    page = names[offset : offset + limit]
    titles = snapshot.model.row_titles(page)
    content = {"total": len(names), "offset": offset, "rows": page}
    return answer(snapshot, content if titles is None else {**content, "titles": titles})


@rows.get("/{name:name}", summary="Show a row")
def show_row(request: Request, name: str) -> Response:
    """Return one row: its metadata, observations and time of addition."""
    service = service_of(request)
    snapshot = service.snapshot
    with not_found():
        row = snapshot.model.row(name)
    stored = None
    with suppress(StorageError):
        stored = service.store.row(row.name)
    content = {
        "name": row.name,
        "title": (snapshot.model.row_titles([row.name]) or ("",))[0],
        "metadata": row.metadata,
        "observations": row.observations,
        "titles": _titles(snapshot, list(row.observations)),
        "fitted": snapshot.model_state.rows.position(row.name) < snapshot.state.fitted_rows,
        "added": format_time(stored.at if stored else None),
    }
    return answer(snapshot, content)


def _titles(snapshot: Snapshot, features: list[str]) -> dict[str, str]:
    """Return the titles of features that have one, by name."""
    titles = feature_titles(snapshot.model_state, features) or ()
    return {name: title for name, title in zip(features, titles, strict=False) if title}


@rows.delete("/{name:name}", summary="Remove a row")
async def remove_row(request: Request, name: str) -> Response:
    """Remove a row: its observations are removed from all features, and the row from the store."""
    return await commit(request, RemoveRow(name), in_path=True)


observations = APIRouter(prefix="/v1/observations", tags=["observations"])


@observations.post("", summary="Add observations", openapi_extra=document_body(NewObservations))
async def observe(request: Request) -> Response:
    """Add observations of rows and features; all of them, or none if one is invalid.

    A request with the header ``Idempotency-Key`` counts once, also if it is sent again.
    """
    body = await read_body(request, NewObservations)
    limit = service_of(request).settings.max_batch
    if len(body.observations) > limit:
        raise Problem(413, f"at most {limit:,} observations fit into one request", "/observations")
    triples: list[tuple[Any, ...]] = [
        (line.row, line.feature, line.value, *(() if line.time is None else (line.time,)))
        for line in body.observations
    ]
    weights = [line.weight for line in body.observations]
    return await commit(request, Observe(triples, weights if any(weights) else None))


predictions = APIRouter(prefix="/v1", tags=["questions"])

ARROW = "application/vnd.apache.arrow.stream"

_SMALL = 16  # cells of known rows that are predicted in the event loop, because a thread would cost more


@predictions.post(
    "/predict",
    summary="Predict rows × features",
    openapi_extra=document_body(Predict),
    responses={200: {"content": {ARROW: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def predict(request: Request) -> Response:
    """Predict the values of rows at features: mean, standard deviation and interval of every cell.

    With ``Accept: application/vnd.apache.arrow.stream`` the answer is an Arrow table, one line for each cell.
    """
    body = await read_body(request, Predict)
    service = service_of(request)
    snapshot, arrow = service.snapshot, ARROW in request.headers.get("accept", "")
    if isinstance(body.rows, list) and len(body.rows) * len(body.features) <= _SMALL:
        return _predict(snapshot, body, service.settings, arrow=arrow)
    return await run_in_threadpool(_predict, snapshot, body, service.settings, arrow=arrow)


def _predict(snapshot: Snapshot, body: Predict, settings: ServiceSettings, *, arrow: bool) -> Response:
    """Check the size and names of a request, and predict it; ``arrow`` asks for an Arrow stream."""
    cells = len(body.rows) * len(body.features)
    if cells > settings.max_cells:
        raise Problem(
            413, f"{cells:,} cells are too many for one call (at most {settings.max_cells:,})", "/rows"
        )
    for field, names in (("/rows", body.rows), ("/features", body.features)):
        if len({*names}) < len(names):
            raise Problem(422, f"{field[1:]} are named twice; name each once", field)
    labelled = False
    with error_at("/features"):
        for name in body.features:
            labelled = labelled or _levels(_kind_and_shots(snapshot, name)[0]) is not None
    if cells <= _SMALL and isinstance(body.rows, list) and body.form == "cells" and not (arrow or labelled):
        return answer(snapshot, _predict_one_by_one(snapshot, body.rows, body))
    with error_at("/rows"):
        prediction = snapshot.model.predict(body.rows, body.features)
    if arrow:
        return _arrow_stream(snapshot, prediction, body.level)
    return answer(snapshot, _prediction_content(prediction, body))


def _predict_one_by_one(snapshot: Snapshot, rows: list[str], body: Predict) -> dict[str, Any]:
    """Predict a few cells, without the overhead of batches."""
    lines = []
    for row in rows:
        with error_at("/rows"):
            snapshot.model_state.rows.position(row)
        for feature in body.features:
            numbers = predict_one_cell(snapshot.model_state, row, feature, body.level)
            line = {"row": row, "feature": feature, **numbers._asdict()}
            lines.append(line | ({"label": NOT_APPLICABLE} if np.isnan(numbers.mean) else {}))
    return {"level": body.level, "predictions": lines}


def _prediction_content(prediction: Prediction, body: Predict) -> dict[str, Any]:
    low, high = prediction.interval(body.level)
    arrays = {"mean": prediction.mean, "std": prediction.std, "low": low, "high": high}
    chances = {name: prediction.probabilities(name).tolist() for name in prediction.labelled}
    levels = {name: prediction.levels(name) for name in chances}
    if body.form == "arrays":
        labelled = {name: {"levels": levels[name], "probabilities": chances[name]} for name in chances}
        return {
            "level": body.level,
            "rows": list(prediction.rows),
            "features": list(prediction.features),
            **{name: array.tolist() for name, array in arrays.items()},
            **({"probabilities": labelled} if labelled else {}),
        }
    numbers = zip(*(array.ravel().tolist() for array in arrays.values()), strict=True)
    cells = ((row, feature) for row in prediction.rows for feature in prediction.features)
    lines = [
        {"row": row, "feature": feature, **dict(zip(arrays, values, strict=True))}
        for (row, feature), values in zip(cells, numbers, strict=True)
    ]
    for number, line in enumerate(lines):
        if (name := line["feature"]) in chances:
            chances_of_row = chances[name][number // len(prediction.features)]
            line["label"] = levels[name][max(range(len(chances_of_row)), key=chances_of_row.__getitem__)]
            line["probabilities"] = dict(zip(levels[name], chances_of_row, strict=True))
        if prediction.not_applicable is not None and prediction.not_applicable.ravel()[number]:
            line["label"] = NOT_APPLICABLE
    return {"level": body.level, "predictions": lines}


def _arrow_stream(snapshot: Snapshot, prediction: Prediction, level: float) -> Response:
    buffer = pa.BufferOutputStream()
    table = prediction.to_arrow(level)
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return Response(buffer.getvalue().to_pybytes(), 200, model_headers(snapshot), ARROW)


@predictions.post("/sample", summary="Draw rows × features jointly")
def sample(request: Request, body: Sample) -> Response:
    """Draw the values of rows at features jointly, ``n`` times; of a category, levels."""
    service = service_of(request)
    snapshot = service.snapshot
    _require_few_values(service, len(body.rows), len(body.features), body.n, "/rows")
    kinds = []
    with error_at("/features"):
        kinds = [_kind_and_shots(snapshot, name)[0] for name in body.features]
    with error_at("/rows"):
        drawn = snapshot.model.sample(body.rows, body.features, body.n, random_state=body.random_state)
    content = {"rows": list(body.rows), "features": body.features, "draws": with_levels(drawn, kinds)}
    return answer(snapshot, content)


@predictions.post("/impute", summary="Fill missing cells several times")
def impute(request: Request, body: Impute) -> Response:
    """Fill the missing cells of rows and features ``m`` times; observed cells have their values."""
    service = service_of(request)
    snapshot = service.snapshot
    rows, features = body.rows or snapshot.model_state.rows, body.features or snapshot.model.features
    _require_few_values(service, len(rows), len(features), body.m, "/m")
    with error_at("/features"):
        for name in body.features or ():
            _kind_and_shots(snapshot, name)
    with error_at("/rows"):
        filled = snapshot.model.impute(
            body.m, rows=body.rows, features=body.features, random_state=body.random_state
        )
    content = {
        "rows": list(filled.rows),
        "features": list(filled.features),
        "observed": filled.observed.tolist(),
        "tables": with_levels(filled.values, filled.kinds),
    }
    return answer(snapshot, content)


def _require_few_values(service: Service, rows: int, features: int, draws: int, field: str) -> None:
    """Raise a problem if an answer would have too many values."""
    values, limit = rows * features * draws, service.settings.max_cells
    if values > limit:
        raise Problem(413, f"{values:,} values are too many for one call (at most {limit:,})", field)


rankings = APIRouter(prefix="/v1", tags=["questions"])


@rankings.post("/recommend", summary="Rank features for a row")
def recommend(request: Request, body: Recommend) -> Response:
    """Rank features for a row, best first."""
    snapshot = service_of(request).snapshot
    with error_at("/row"):
        # Raise errors of the row here, so that other errors concern the features.
        row: Any = [body.row] if isinstance(body.row, str) else {"row": body.row}
        snapshot.model.predict(row, snapshot.model.features[:1])
    with error_at("/features"):
        ranking = snapshot.model.recommend(
            body.row,
            body.n,
            body.features,
            by=body.by,
            exclude_observed=body.exclude_observed,
            exclude=body.exclude or (),
            where=body.where,
            quantile=body.quantile,
            random_state=body.random_state,
            mixed_kinds=body.mixed_kinds,
            level=body.level,
        )
    return answer(snapshot, _ranking_content(ranking))


def _snapshot_with(request: Request, feature: str, *, category: bool = True) -> Snapshot:
    """Return the snapshot; raise a problem if it does not have the feature.

    Without ``category``, a category is a problem, too: one of its levels must be named.
    """
    snapshot = service_of(request).snapshot
    with error_at("/feature"):
        if not (category and category_columns(snapshot.model_state, feature)):
            snapshot.model_state.feature_store[feature]
    return snapshot


@rankings.post("/audience", summary="Rank rows for a feature")
def audience(request: Request, body: Audience) -> Response:
    """Rank rows for a feature, best first."""
    snapshot = _snapshot_with(request, body.feature, category=body.by == "information")
    with error_at("/rows"):
        ranking = snapshot.model.audience(
            body.feature,
            body.n,
            body.rows,
            by=body.by,
            exclude_observed=body.exclude_observed,
            exclude=body.exclude or (),
            where=body.where,
            quantile=body.quantile,
            random_state=body.random_state,
            level=body.level,
        )
    return answer(snapshot, _ranking_content(ranking))


def _ranking_content(ranking: Ranking) -> dict[str, Any]:
    arrays = (ranking.score, ranking.mean, ranking.std, ranking.low, ranking.high)
    lines = zip(ranking.names, *(array.tolist() for array in arrays), strict=True)
    fields = (ranking.noun, "score", "mean", "std", "low", "high")
    ranked: list[dict[str, Any]] = [dict(zip(fields, line, strict=True)) for line in lines]
    for line, title in zip(ranked, ranking.titles or (), strict=False):
        line["title"] = title
    return {"of": ranking.of, "by": ranking.by, "level": ranking.level, "ranking": ranked}


@rankings.post("/suggest", summary="Suggest rows to observe next")
def suggest(request: Request, body: Suggest) -> Response:
    """Return the rows whose observations would inform most about a feature."""
    snapshot = _snapshot_with(request, body.feature)
    with error_at("/rows"):
        rows = snapshot.model.suggest(body.feature, body.n, body.rows)
    return answer(snapshot, {"feature": body.feature, "rows": rows})


@rankings.post("/similar", summary="Find similar features")
def similar(request: Request, body: Similar) -> Response:
    """Return the features whose predictions correlate most with those of one feature."""
    snapshot = service_of(request).snapshot
    with error_at("/feature"):
        similar_features = snapshot.model.similar(body.feature, body.n)
    lines = similar_features.to_arrow().to_pylist()
    return answer(snapshot, {"feature": similar_features.feature, "similar": lines})


@rankings.post("/explain", summary="Explain a prediction")
def explain(request: Request, body: Explain) -> Response:
    """Split a prediction into contributions of observations and metadata that add up to it."""
    snapshot = _snapshot_with(request, body.feature)
    with error_at("/row"):
        explanation = snapshot.model.explain(body.row, body.feature)
    contributions = [
        {
            "source": part.source,
            "name": part.name,
            "given": part.given if isinstance(part.given, (str, int, float, bool, list)) else None,
            "label": part.label,
            "value": part.value,
        }
        for part in explanation.largest(body.n)
    ]
    content = {
        "row": explanation.row,
        "feature": explanation.feature,
        "title": explanation.feature_title,
        "unit": explanation.unit,
        "baseline": explanation.baseline,
        "output": explanation.output,
        "mean": explanation.mean,
        "contributions": contributions,
    }
    return answer(snapshot, content)


admin = APIRouter(prefix="/v1", tags=["model"])

_BUCKETS = 60  # in the course of surprise over time


@admin.get("/model", summary="Which model is served")
def model(request: Request) -> Response:
    """Describe the served model: its parts, its size, and the number of additions."""
    snapshot = service_of(request).snapshot
    info, state = snapshot.model.info, snapshot.state
    content = {
        "backbone": info.backbone,
        "adapter": info.adapter,
        "rows": info.rows,
        "features": info.features,
        "added_features": info.features - state.fitted_features,
        "added_rows": info.rows - state.fitted_rows,
        "left_out": state.left_out,
        "kinds": [str(kind) for kind in snapshot.model_state.kinds[:20]],
        "metadata": info.metadata,
        "words": _words(snapshot),
    }
    return answer(snapshot, content)


def _words(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the page's names for rows, features and values; the unit is None if values have no name."""
    words = snapshot.model_state.words
    return {
        "row": words.row,
        "rows": plural(words.row),
        "feature": words.feature,
        "features": plural(words.feature),
        "value": words.value,
        "unit": words.unit,
    }


@admin.post("/model", summary="Take over another fitted model")
def take_over(request: Request, body: TakeOver) -> Response:
    """Serve the fitted model of another folder, with all changes so far; no request is interrupted."""
    with error_at("/path"):
        snapshot = service_of(request).take_over(Path(body.path).resolve())
    return answer(snapshot, {"left_out": snapshot.state.left_out})


@admin.get("/schema", summary="The metadata of features and rows")
def schema(request: Request) -> Response:
    """Return the metadata columns of features and rows, with known values and ranges."""
    snapshot = service_of(request).snapshot
    fitted = snapshot.model_state
    row_metadata = fitted.row_metadata
    # The levels of categories are metadata that no one enters.
    level_column = LEVEL if any(isinstance(kind.margin, Category) for kind in fitted.kinds) else None
    content = {
        "features": [column for column in _columns(fitted.schema) if column["name"] != level_column],
        "rows": _columns(None if row_metadata is None else row_metadata.schema),
        "kinds": sorted({kind.option for kind in fitted.kinds})[:100],
        "usual_kind": str(fitted.kinds[0]),
    }
    return answer(snapshot, content)


def _columns(schema: MetadataSchema | None) -> list[dict[str, Any]]:
    columns = [] if schema is None else schema.columns
    return [
        {"name": column.name, "type": column.spec.partition(":")[0]}
        | column.model_dump(include={"values", "low", "high", "mean"})
        for column in columns
    ]


@admin.get("/quality", summary="How good predictions are")
def quality(request: Request) -> Response:
    """Return expected errors by shots, the calibration, and the surprise of observations over time."""
    service = service_of(request)
    snapshot = service.snapshot
    info = snapshot.model.info
    buckets = service.store.error_sums(_BUCKETS)
    content = {
        "judged_on": info.judged_on,
        "unit": info.unit,
        "curve": _curve(info.errors),
        "means": _curve(info.means),
        "calibration": _calibration(snapshot),
        "metadata": info.metadata,
        "surprise": [_surprise(bucket) for bucket in buckets],
        "staleness": _staleness(snapshot, buckets),
    }
    return answer(snapshot, content)


def _curve(errors: list[ExpectedError]) -> list[dict[str, Any]]:
    return [
        {"shots": point.shots, "error": point.error, "standard_error": point.standard_error}
        for point in errors
    ]


def _calibration(snapshot: Snapshot) -> dict[str, Any]:
    calibration, types = snapshot.model_state.calibration, {kind.type for kind in snapshot.model_state.kinds}
    return {
        "shots": calibration.marks.tolist(),
        "levels": list(LEVELS),
        "factors": {
            kind_type.name.lower(): calibration.factors[kind_type].tolist()
            for kind_type in KindType
            if kind_type in types and kind_type < len(calibration.factors)  # none for clicks
        },
        "slopes": calibration.slopes.tolist(),
        "shifts": calibration.shifts.tolist(),
    }


def _surprise(bucket: ErrorBucket) -> dict[str, Any]:
    """Return the mean and standard error of the surprise in a period."""
    return {
        "first": format_time(bucket.first),
        "last": format_time(bucket.last),
        "observations": bucket.errors.observations,
        "excess": bucket.errors.mean,
        "standard_error": bucket.errors.standard_error,
    }


def _staleness(snapshot: Snapshot, buckets: list[ErrorBucket]) -> dict[str, Any]:
    """Return ``Headstart.staleness`` for the observations of all periods."""
    sums = ErrorSums(*(sum(numbers) for numbers in zip(*(bucket.errors for bucket in buckets), strict=True)))
    staleness = staleness_of(sums, len(snapshot.model_state.knowledge.cells.index))
    return {
        "observations": staleness.observations,
        "growth": staleness.growth,
        "excess": staleness.excess,
        "standard_error": staleness.standard_error,
        "refit": staleness.refit,
        "text": str(staleness),
    }


# Endpoints that are called without FastAPI's routing, which takes as long as the prediction of one cell.
DIRECT = {("POST", "/v1/predict"): predict, ("POST", "/v1/observations"): observe}

PARSED_HERE = (Predict, NewObservations)  # the bodies that FastAPI does not parse
