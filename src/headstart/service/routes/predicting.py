"""Predictions: one cell or a million, in one call."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from headstart.model.asking.prediction import Prediction
from headstart.service.answering import MODEL_HEADER, NUMBER_HEADER, answer, service_of
from headstart.service.live.model import Snapshot
from headstart.service.problems import Problem, located, of_validation
from headstart.service.quick import quick_cell
from headstart.service.schemas import Predict
from headstart.service.settings import ServiceSettings

router = APIRouter(prefix="/v1", tags=["questions"])
ARROW = "application/vnd.apache.arrow.stream"
_SMALL = 16  # cells of known rows: predicted at once, without the way through a thread
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Predict"}}},
    }
}


@router.post(
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
    with located("/features"):
        for name in body.features:
            snapshot.shown.catalogue[name]
    if cells <= _SMALL and isinstance(body.rows, list) and body.form == "cells" and not arrow:
        return answer(snapshot, _cells(snapshot, body.rows, body))
    with located("/rows"):
        predicted = snapshot.model.predict(body.rows, body.features)
    if arrow:
        return _arrow(snapshot, predicted, body.level)
    return answer(snapshot, _content(predicted, body))


def _cells(snapshot: Snapshot, rows: list[str], body: Predict) -> dict[str, Any]:
    """A few cells, one by one."""
    lines = []
    for row in rows:
        with located("/rows"):
            snapshot.shown.rows.position(row)
        for feature in body.features:
            mean, std, low, high = quick_cell(snapshot.shown, row, feature, body.level)
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
