"""Call a Headstart service from Python (extra ``service``)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import NDArray

from headstart.closing import Closing
from headstart.errors import HeadstartError

__all__ = ["Client", "ServiceError"]


class ServiceError(HeadstartError):
    """A service refused a request, or could not be reached.

    Attributes
    ----------
    status : int
        The status of the answer; 0 if there was none.
    detail : str
        What was wrong and what to do.
    fields : list of str
        JSON pointers to what was wrong in the body.
    """

    def __init__(self, status: int, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(detail if not status else f"{detail} (status {status})")
        self.status, self.detail = status, detail
        self.fields = [str(each.get("field", "")) for each in errors or []]


class Cell(TypedDict):
    """The prediction of one row and feature."""

    row: str
    feature: str
    mean: float
    std: float
    low: float
    high: float


class RankedFeature(TypedDict):
    """A feature in a ranking."""

    feature: str
    score: float
    mean: float
    std: float
    low: float
    high: float


class RankedRow(TypedDict):
    """A row in a ranking."""

    row: str
    score: float
    mean: float
    std: float
    low: float
    high: float


class FeatureLine(TypedDict):
    """A feature in a list."""

    name: str
    kind: str
    shots: int
    uncertainty: float | None
    added: str | None


class FeaturePage(TypedDict):
    """A page of a list of features."""

    model: str
    number: int
    total: int
    offset: int
    features: list[FeatureLine]


class Taken(TypedDict):
    """What is said of a change that is committed; ``number`` is that of the change."""

    model: str
    number: int


By = Literal["mean", "upper", "information"]

Row = str | Mapping[str, float]


class Client(Closing):
    """Asks a service and writes to it.

    Parameters
    ----------
    address : str, default="http://localhost:8000"
        Where the service is.
    token : str, default=None
        An API token, as ``headstart token create`` prints it.
    timeout : float, default=30.0
        Seconds to wait for an answer.
    retries : int, default=2
        How often a request is repeated if the service cannot be reached or is busy. Changes carry a key, so
        that one that is repeated counts once.
    transport : httpx.BaseTransport, default=None
        How requests are sent, for tests.

    Examples
    --------
    >>> with Client("http://localhost:8000") as films:  # doctest: +SKIP
    ...     films.add_feature("Dune 3", {"year": 2026}, {"u1": 5})
    ...     films.observe([("u2", "Dune 3", 4)])
    ...     films.predict(["u3"], ["Dune 3"])
    """

    def __init__(
        self,
        address: str = "http://localhost:8000",
        token: str | None = None,
        timeout: float = 30.0,
        retries: int = 2,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=address, timeout=timeout, headers=headers, transport=transport)
        self._retries = retries

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def add_feature(
        self,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        observations: Mapping[str, float] | None = None,
        kind: str | None = None,
    ) -> Taken:
        """Add a feature; see ``Headstart.add_feature``."""
        body: dict[str, Any] = {"name": name, "metadata": metadata or {}, "observations": observations or {}}
        if kind is not None:
            body["kind"] = kind
        return cast(Taken, self._write("POST", "/v1/features", body))

    def add_row(
        self,
        name: str,
        observations: Mapping[str, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Taken:
        """Add a row; see ``Headstart.add_rows``."""
        body = {"name": name, "observations": observations or {}, "metadata": metadata}
        return cast(Taken, self._write("POST", "/v1/rows", body))

    def observe(self, observations: Iterable[tuple[str, str, float]]) -> Taken:
        """Take observations (row, feature, value); all of them or none."""
        lines = [{"row": row, "feature": feature, "value": value} for row, feature, value in observations]
        return cast(Taken, self._write("POST", "/v1/observations", {"observations": lines}))

    def remove_feature(self, name: str) -> Taken:
        """Remove a feature."""
        return cast(Taken, self._write("DELETE", _place("features", name)))

    def forget_row(self, name: str) -> Taken:
        """Forget a row with all that it observed."""
        return cast(Taken, self._write("DELETE", _place("rows", name)))

    def predict(
        self,
        rows: Sequence[str] | Mapping[str, Mapping[str, float]],
        features: Sequence[str],
        level: float = 0.9,
    ) -> list[Cell]:
        """Predict rows × features, one entry for each cell; see ``Headstart.predict``."""
        body = {"rows": _plain(rows), "features": list(features), "level": level}
        return cast(list[Cell], self._ask("/v1/predict", body)["predictions"])

    def predict_arrays(
        self,
        rows: Sequence[str] | Mapping[str, Mapping[str, float]],
        features: Sequence[str],
        level: float = 0.9,
    ) -> dict[str, NDArray[np.float64]]:
        """Predict rows × features as the arrays mean, std, low and high: (rows, features)."""
        body = {"rows": _plain(rows), "features": list(features), "level": level, "form": "arrays"}
        answer = self._ask("/v1/predict", body)
        return {name: np.array(answer[name], dtype=np.float64) for name in ("mean", "std", "low", "high")}

    def recommend(
        self, row: Row, n: int = 10, by: By = "mean", *, exclude_observed: bool = True
    ) -> list[RankedFeature]:
        """Rank features for a row; see ``Headstart.recommend``."""
        body = {"row": _plain(row), "n": n, "by": by, "exclude_observed": exclude_observed}
        return cast(list[RankedFeature], self._ask("/v1/recommend", body)["ranking"])

    def audience(
        self, feature: str, n: int = 10, by: By = "mean", *, exclude_observed: bool = True
    ) -> list[RankedRow]:
        """Rank rows for a feature; see ``Headstart.audience``."""
        body = {"feature": feature, "n": n, "by": by, "exclude_observed": exclude_observed}
        return cast(list[RankedRow], self._ask("/v1/audience", body)["ranking"])

    def suggest(self, feature: str, n: int = 10) -> list[str]:
        """Name the rows to observe next; see ``Headstart.suggest``."""
        return cast(list[str], self._ask("/v1/suggest", {"feature": feature, "n": n})["rows"])

    def similar(self, feature: str, n: int = 10) -> list[tuple[str, float]]:
        """Find features that are alike; see ``Headstart.similar``."""
        found = self._ask("/v1/similar", {"feature": feature, "n": n})["similar"]
        return [(each["feature"], each["similarity"]) for each in found]

    def explain(self, row: Row, feature: str, n: int = 20) -> dict[str, Any]:
        """Say why a cell is predicted as it is; see ``Headstart.explain``."""
        return self._ask("/v1/explain", {"row": _plain(row), "feature": feature, "n": n})

    def features(
        self, search: str = "", sort: str = "added", order: str = "asc", offset: int = 0, limit: int = 50
    ) -> FeaturePage:
        """List features, page by page."""
        wanted = {"search": search, "sort": sort, "order": order, "offset": offset, "limit": limit}
        return cast(FeaturePage, self._send("GET", "/v1/features", params=wanted))

    def feature(self, name: str) -> dict[str, Any]:
        """Show one feature."""
        return self._send("GET", _place("features", name))

    def history(self, name: str) -> list[dict[str, float]]:
        """Show how a feature's predictions moved as observations came in."""
        return cast(
            list[dict[str, float]], self._send("GET", _place("features", name) + "/history")["history"]
        )

    def row(self, name: str) -> dict[str, Any]:
        """Show one row."""
        return self._send("GET", _place("rows", name))

    def model(self) -> dict[str, Any]:
        """Say which model is served."""
        return self._send("GET", "/v1/model")

    def schema(self) -> dict[str, Any]:
        """Say which metadata features and rows have."""
        return self._send("GET", "/v1/schema")

    def quality(self) -> dict[str, Any]:
        """Show how good predictions are."""
        return self._send("GET", "/v1/quality")

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("POST", path, body)

    def _write(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._send(method, path, body, headers={"idempotency-key": str(uuid.uuid4())})

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = options.pop("headers", {}) | ({} if body is None else {"content-type": "application/json"})
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                answer = self._http.request(method, path, content=content, headers=headers, **options)
            except httpx.TransportError as error:
                if last:
                    raise ServiceError(0, f"{self._http.base_url} cannot be reached: {error}") from None
                continue
            if answer.status_code == 503 and not last:
                continue
            return _content(answer)
        raise ServiceError(0, "no answer")


def _content(answer: httpx.Response) -> dict[str, Any]:
    try:
        content = answer.json()
    except ValueError:
        raise ServiceError(
            answer.status_code, "the answer is not JSON; is this a Headstart service?"
        ) from None
    if answer.is_success:
        return cast(dict[str, Any], content)
    raise ServiceError(answer.status_code, content.get("detail", answer.reason_phrase), content.get("errors"))


def _place(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"


def _plain(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {key: _plain(value) for key, value in given.items()}
    return given if isinstance(given, (str, float, int)) else list(given)
