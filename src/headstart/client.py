"""Call a Headstart service from Python (extra ``service``): ``Client`` has the methods of ``Headstart``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Self, TypedDict, cast
from urllib.parse import quote

from headstart.errors import HeadstartError, InputError

if TYPE_CHECKING:
    import httpx
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Client", "ServiceError"]


class ServiceError(HeadstartError):
    """A service refused a request, or could not be reached.

    Attributes
    ----------
    status : int
        The status of the answer; 0 if there was none.
    detail : str
        The problem and its remedy.
    fields : list of str
        JSON pointers to the invalid fields of the body.
    """

    def __init__(self, status: int, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(detail if not status else f"{detail} (status {status})")
        self.status, self.detail = status, detail
        self.fields = [str(error.get("field", "")) for error in errors or []]


class Cell(TypedDict):
    """The prediction of one row and feature; a category has the probabilities of its levels, no numbers."""

    row: str
    feature: str
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    label: NotRequired[str]  # the most probable one, of a feature with labels
    probabilities: NotRequired[dict[str, float]]  # of all labels


class Imputed(TypedDict):
    """Filled tables: the value of a category is a level."""

    rows: list[str]
    features: list[str]
    observed: list[list[bool]]  # whether each cell was observed
    tables: list[list[list[float | str]]]  # (m, rows, features)


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
    """A feature in a list, with the prediction of an average row."""

    name: str
    title: NotRequired[str]
    mean: float | None  # None of a category
    low: float | None
    high: float | None
    kind: str
    levels: list[str] | None  # the labels of its values
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


class RowPage(TypedDict):
    """A page of a list of rows."""

    model: str
    number: int
    total: int
    offset: int
    rows: list[str]


class Receipt(TypedDict):
    """The answer to a committed change: the identity of the model and the number of the change."""

    model: str
    number: int


By = Literal["mean", "lower", "upper", "sample", "lift", "relevance", "information"]

Row = str | Mapping[str, float]

Time = float | str | date  # of observations, for a model with a half-life; a datetime is a date


class Client:
    """Call a service with the methods of ``Headstart``.

    Parameters
    ----------
    address : str, default="http://localhost:8000"
        The address of the service.
    token : str, default=None
        An API token, as ``headstart token create`` prints it.
    timeout : float, default=30.0
        Seconds to wait for an answer.
    retries : int, default=2
        The number of times to repeat a request if the service cannot be reached or is busy. A change has a
        key, so that a repeated one counts once.
    transport : httpx.BaseTransport, default=None
        The transport of requests, for tests.

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
        try:
            import httpx
        except ImportError:
            raise InputError("the client needs httpx; pip install 'headstart[service]'") from None
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=address, timeout=timeout, headers=headers, transport=transport)
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def add_feature(
        self,
        feature: str,
        metadata: Mapping[str, Any] | None = None,
        observations: Mapping[str, float | str] | None = None,
        kind: str | None = None,
        levels: Mapping[str, Mapping[str, Any]] | None = None,
        weight: float | Mapping[str, float] | None = None,
    ) -> Receipt:
        """Add a feature; see ``Headstart.add_feature``."""
        body: dict[str, Any] = {
            "name": feature,
            "metadata": metadata or {},
            "observations": observations or {},
            "kind": kind,
        }
        if levels is not None:
            body["levels"] = levels
        if weight is not None:
            body["weight"] = weight
        return cast(Receipt, self._write("POST", "/v1/features", body))

    def add_row(
        self,
        row: str,
        metadata: Mapping[str, Any] | None = None,
        observations: Mapping[str, float | str] | None = None,
    ) -> Receipt:
        """Add a row; see ``Headstart.add_row``."""
        body = {"name": row, "metadata": metadata, "observations": observations or {}}
        return cast(Receipt, self._write("POST", "/v1/rows", body))

    def observe(
        self,
        observations: Iterable[tuple[str, str, float | str] | tuple[str, str, float | str, Time]],
        *,
        time: Time | None = None,
        weight: float | Sequence[float] | None = None,
    ) -> Receipt:
        """Add observations, all of them or none; see ``Headstart.observe``.

        An observation is (row, feature, value) or (row, feature, value, time); ``time`` is the time of the
        observations without one. ``weight`` is the weight of all observations, or there is one for each.
        """
        observations = list(observations)
        weights = list(weight) if isinstance(weight, Sequence) else [weight] * len(observations)
        if len(weights) != len(observations):
            raise InputError(
                f"weight has {len(weights)} numbers for {len(observations)} observations; give one for each"
            )
        lines = [
            {
                "row": row,
                "feature": feature,
                "value": value,
                "time": _to_json(own_time[0] if own_time else time),
                **({} if own_weight is None else {"weight": float(own_weight)}),
            }
            for (row, feature, value, *own_time), own_weight in zip(observations, weights, strict=True)
        ]
        return cast(Receipt, self._write("POST", "/v1/observations", {"observations": lines}))

    def remove_feature(self, feature: str) -> Receipt:
        """Remove a feature; see ``Headstart.remove_feature``."""
        return cast(Receipt, self._write("DELETE", _path("features", feature)))

    def remove_row(self, row: str) -> Receipt:
        """Remove a row with all its observations; see ``Headstart.remove_row``."""
        return cast(Receipt, self._write("DELETE", _path("rows", row)))

    def predict(
        self,
        rows: Sequence[str] | Mapping[str, Mapping[str, float]],
        features: Sequence[str],
        level: float = 0.9,
    ) -> list[Cell]:
        """Predict rows × features, one entry for each cell; see ``Headstart.predict``."""
        body = {"rows": _to_json(rows), "features": list(features), "level": level}
        return cast(list[Cell], self._ask("/v1/predict", body)["predictions"])

    def predict_arrays(
        self,
        rows: Sequence[str] | Mapping[str, Mapping[str, float]],
        features: Sequence[str],
        level: float = 0.9,
    ) -> dict[str, NDArray[np.float64]]:
        """Predict rows × features as the arrays mean, std, low and high: (rows, features)."""
        body = {"rows": _to_json(rows), "features": list(features), "level": level, "form": "arrays"}
        import numpy as np

        answer = self._ask("/v1/predict", body)
        return {name: np.array(answer[name], dtype=np.float64) for name in ("mean", "std", "low", "high")}

    def sample(
        self,
        rows: Sequence[str] | Mapping[str, Mapping[str, float | str]],
        features: Sequence[str],
        n: int = 1,
        *,
        random_state: int = 0,
    ) -> list[list[list[float | str]]]:
        """Draw rows × features jointly, as lists (n, rows, features); see ``Headstart.sample``.

        The value of a category is a level.
        """
        body = {"rows": _to_json(rows), "features": list(features), "n": n, "random_state": random_state}
        return cast(list[list[list[float | str]]], self._ask("/v1/sample", body)["draws"])

    def impute(
        self,
        m: int = 20,
        *,
        rows: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        random_state: int = 0,
    ) -> Imputed:
        """Fill the missing cells of the model ``m`` times; see ``Headstart.impute``."""
        body = {
            "m": m,
            "rows": None if rows is None else list(rows),
            "features": None if features is None else list(features),
            "random_state": random_state,
        }
        return cast(Imputed, self._ask("/v1/impute", body))

    def recommend(
        self,
        row: Row,
        n: int = 10,
        features: Sequence[str] | None = None,
        *,
        by: By | None = None,
        exclude_observed: bool = True,
        exclude: Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        quantile: float = 0.9,
        random_state: int = 0,
        mixed_kinds: bool = False,
        level: float = 0.9,
    ) -> list[RankedFeature]:
        """Rank features for a row; see ``Headstart.recommend``."""
        body = {
            "row": _to_json(row),
            "n": n,
            "features": None if features is None else list(features),
            "by": by,
            "exclude_observed": exclude_observed,
            "exclude": list(exclude) or None,
            "where": None if where is None else dict(where),
            "quantile": quantile,
            "random_state": random_state,
            "mixed_kinds": mixed_kinds,
            "level": level,
        }
        return cast(list[RankedFeature], self._ask("/v1/recommend", body)["ranking"])

    def audience(
        self,
        feature: str,
        n: int = 10,
        rows: Sequence[str] | None = None,
        *,
        by: By = "mean",
        exclude_observed: bool = True,
        exclude: Sequence[str] = (),
        where: Mapping[str, Any] | None = None,
        quantile: float = 0.9,
        random_state: int = 0,
        level: float = 0.9,
    ) -> list[RankedRow]:
        """Rank rows for a feature; see ``Headstart.audience``."""
        body = {
            "feature": feature,
            "n": n,
            "rows": None if rows is None else list(rows),
            "by": by,
            "exclude_observed": exclude_observed,
            "exclude": list(exclude) or None,
            "where": None if where is None else dict(where),
            "quantile": quantile,
            "random_state": random_state,
            "level": level,
        }
        return cast(list[RankedRow], self._ask("/v1/audience", body)["ranking"])

    def suggest(self, feature: str, n: int = 10, rows: Sequence[str] | None = None) -> list[str]:
        """Return the rows to observe next; see ``Headstart.suggest``."""
        body = {"feature": feature, "n": n, "rows": None if rows is None else list(rows)}
        return cast(list[str], self._ask("/v1/suggest", body)["rows"])

    def similar(self, feature: str, n: int = 10) -> list[tuple[str, float]]:
        """Find similar features; see ``Headstart.similar``."""
        lines = self._ask("/v1/similar", {"feature": feature, "n": n})["similar"]
        return [(line["feature"], line["similarity"]) for line in lines]

    def explain(self, row: Row, feature: str, n: int = 20) -> dict[str, Any]:
        """Explain a prediction by its ``n`` largest contributions; see ``Headstart.explain``."""
        return self._ask("/v1/explain", {"row": _to_json(row), "feature": feature, "n": n})

    def features(
        self, search: str = "", sort: str = "added", order: str = "asc", offset: int = 0, limit: int = 50
    ) -> FeaturePage:
        """List features, page by page."""
        parameters = {"search": search, "sort": sort, "order": order, "offset": offset, "limit": limit}
        return cast(FeaturePage, self._send("GET", "/v1/features", params=parameters))

    def feature(self, feature: str) -> dict[str, Any]:
        """Return one feature; see ``Headstart.feature``."""
        return self._send("GET", _path("features", feature))

    def history(self, feature: str) -> list[dict[str, float]]:
        """Return the mean prediction of a feature after each number of observations."""
        answer = self._send("GET", _path("features", feature) + "/history")
        return cast(list[dict[str, float]], answer["history"])

    def rows(self, search: str = "", offset: int = 0, limit: int = 50) -> RowPage:
        """List the names of rows, page by page."""
        parameters = {"search": search, "offset": offset, "limit": limit}
        return cast(RowPage, self._send("GET", "/v1/rows", params=parameters))

    def row(self, row: str) -> dict[str, Any]:
        """Return one row; see ``Headstart.row``."""
        return self._send("GET", _path("rows", row))

    def model(self) -> dict[str, Any]:
        """Describe the served model."""
        return self._send("GET", "/v1/model")

    def schema(self) -> dict[str, Any]:
        """Return the metadata columns of features and rows."""
        return self._send("GET", "/v1/schema")

    def quality(self) -> dict[str, Any]:
        """Return the quality of predictions: errors by shots, calibration and surprise."""
        return self._send("GET", "/v1/quality")

    def _ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("POST", path, body)

    def _write(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._send(method, path, body, headers={"idempotency-key": str(uuid.uuid4())})

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        import httpx

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
            return _read(answer)
        raise ServiceError(0, "no answer")


def _read(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON of an answer; raise ServiceError if it is a problem."""
    try:
        content = answer.json()
    except ValueError:
        raise ServiceError(
            answer.status_code, "the answer is not JSON; is this a Headstart service?"
        ) from None
    if answer.is_success:
        return cast(dict[str, Any], content)
    raise ServiceError(answer.status_code, content.get("detail", answer.reason_phrase), content.get("errors"))


def _path(collection: str, name: str) -> str:
    # HTTP libraries take the segments . and .. for folders.
    encoded = name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
    return f"/v1/{collection}/{encoded}"


def _to_json(value: Any) -> Any:
    """Return mappings as dictionaries, dates as text and other sequences as lists."""
    if isinstance(value, Mapping):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, date):
        return value.isoformat()
    return value if value is None or isinstance(value, (str, float, int)) else list(value)
