"""Questions that rank, compare and explain."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from headstart.model.asking.ranking import Ranking
from headstart.service.answering import answer, service_of
from headstart.service.live.model import Snapshot
from headstart.service.problems import located
from headstart.service.schemas import Audience, Explain, Recommend, Similar, Suggest

router = APIRouter(prefix="/v1", tags=["questions"])


@router.post("/recommend", summary="Rank features for a row")
def recommend(request: Request, body: Recommend) -> Response:
    """Rank features for a row, best first."""
    snapshot = service_of(request).snapshot
    with located("/row"):
        snapshot.model.predict(_asked(body.row), snapshot.model.features[:1])
    with located("/features"):
        ranking = snapshot.model.recommend(
            body.row,
            body.n,
            body.features,
            body.exclude_observed,
            body.by,
            mixed_kinds=body.mixed_kinds,
            level=body.level,
        )
    return answer(snapshot, _ranking(ranking))


def _asked(row: str | dict[str, float]) -> Any:
    return [row] if isinstance(row, str) else {"row": row}


def _knowing(request: Request, feature: str) -> Snapshot:
    """The present model, if it has this feature."""
    snapshot = service_of(request).snapshot
    with located("/feature"):
        snapshot.shown.catalogue[feature]
    return snapshot


@router.post("/audience", summary="Rank rows for a feature")
def audience(request: Request, body: Audience) -> Response:
    """Rank rows for a feature, best first."""
    snapshot = _knowing(request, body.feature)
    with located("/rows"):
        ranking = snapshot.model.audience(
            body.feature, body.n, body.rows, body.exclude_observed, body.by, level=body.level
        )
    return answer(snapshot, _ranking(ranking))


def _ranking(ranking: Ranking) -> dict[str, Any]:
    arrays = (ranking.score, ranking.mean, ranking.std, ranking.low, ranking.high)
    lines = zip(ranking.names, *(array.tolist() for array in arrays), strict=True)
    fields = (ranking.noun, "score", "mean", "std", "low", "high")
    ranked = [dict(zip(fields, line, strict=True)) for line in lines]
    return {"of": ranking.of, "by": ranking.by, "level": ranking.level, "ranking": ranked}


@router.post("/suggest", summary="Whom to ask next")
def suggest(request: Request, body: Suggest) -> Response:
    """Name the rows whose observations would tell most about a feature."""
    snapshot = _knowing(request, body.feature)
    with located("/rows"):
        rows = snapshot.model.suggest(body.feature, body.rows, body.n)
    return answer(snapshot, {"feature": body.feature, "rows": rows})


@router.post("/similar", summary="Features that are alike")
def similar(request: Request, body: Similar) -> Response:
    """Find the features whose predictions go together with those of one feature."""
    snapshot = service_of(request).snapshot
    with located("/feature"):
        found = snapshot.model.similar(body.feature, body.n)
    lines = [{"feature": name, "similarity": value} for name, value in found]
    return answer(snapshot, {"feature": found.feature, "similar": lines})


@router.post("/explain", summary="Why a cell is predicted as it is")
def explain(request: Request, body: Explain) -> Response:
    """Say which observations and metadata made a prediction, as contributions that add up."""
    snapshot = service_of(request).snapshot
    with located("/feature"):
        snapshot.shown.catalogue[body.feature]
    with located("/row"):
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
