"""The model that is served: what it is, how good it is, and another one in its place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from headstart.service.answering import answer, moment, service_of
from headstart.service.live.model import Snapshot
from headstart.service.problems import located
from headstart.service.schemas import TakeOver
from headstart.table import MetadataSchema
from headstart.table.kinds import KindType
from headstart.training.calibration import LEVELS

router = APIRouter(prefix="/v1", tags=["model"])
_BUCKETS = 60  # of surprise over time


@router.get("/model", summary="Which model is served")
def model(request: Request) -> Response:
    """Say which model is served, what it is made of and how much has arrived."""
    snapshot = service_of(request).snapshot
    info, state = snapshot.model.info, snapshot.state
    content = {
        "backbone": info.backbone,
        "adapter": info.adapter,
        "rows": info.rows,
        "features": info.features,
        "added_features": info.features - len(state.origin.catalogue),
        "added_rows": info.rows - state.own_rows,
        "left_out": state.left_out,
        "kinds": [str(kind) for kind in snapshot.shown.kinds[:20]],
        "metadata": info.metadata,
    }
    return answer(snapshot, content)


@router.post("/model", summary="Take over another fitted model")
def take_over(request: Request, body: TakeOver) -> Response:
    """Serve the fitted model of another folder, with everything that arrived; no answer is interrupted."""
    with located("/path"):
        snapshot = service_of(request).take_over(Path(body.path).resolve())
    return answer(snapshot, {"left_out": snapshot.state.left_out})


@router.get("/schema", summary="The metadata of features and rows")
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


@router.get("/quality", summary="How good predictions are")
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
    from headstart.model.parts.staleness import Arrived, staleness_of

    count = sum(each["observations"] for each in parts)
    total = sum(each["observations"] * each["excess"] for each in parts)
    squares = sum(
        each["observations"] * (each["excess"] ** 2 + each["observations"] * each["standard_error"] ** 2)
        for each in parts
    )
    said = staleness_of(Arrived(count, total, squares), len(snapshot.shown.knowledge.cells.index))
    return {
        "observations": said.observations,
        "growth": said.growth,
        "excess": said.excess,
        "standard_error": said.standard_error,
        "refit": said.refit,
        "text": str(said),
    }
