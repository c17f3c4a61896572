"""What the service answers: one request for each endpoint, and some that it refuses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from starlette.testclient import TestClient

from headstart.service.app import create_app
from tests.references.cases import model_of

ARROW = "application/vnd.apache.arrow.stream"
OBSERVED = {"observations": [{"row": "u01", "feature": "f02", "value": 5},
                             {"row": "u02", "feature": "new", "value": 1}]}  # fmt: skip
NEW = {"name": "new", "metadata": {"genre": "drama", "year": 2003}, "observations": {"u00": 5, "u03": 2}}
GUEST = {"name": "guest", "observations": {"f00": 4, "f05": 1}}

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "alive": ("GET", "/health", None),
    "ready": ("GET", "/ready", None),
    "model": ("GET", "/v1/model", None),
    "schema": ("GET", "/v1/schema", None),
    "list features": ("GET", "/v1/features?limit=3&sort=name&order=desc", None),
    "show a feature": ("GET", "/v1/features/f01", None),
    "add a feature": ("POST", "/v1/features", NEW),
    "add a feature twice": ("POST", "/v1/features", NEW),
    "show an added feature": ("GET", "/v1/features/new", None),
    "add a row": ("POST", "/v1/rows", GUEST),
    "list rows": ("GET", "/v1/rows?search=u1&limit=4", None),
    "show a row": ("GET", "/v1/rows/guest", None),
    "show a fitted row": ("GET", "/v1/rows/u00", None),
    "observe": ("POST", "/v1/observations", OBSERVED),
    "history": ("GET", "/v1/features/new/history", None),
    "distribution": ("GET", "/v1/features/new/distribution", None),
    "predict cells": ("POST", "/v1/predict", {"rows": ["u01", "guest"], "features": ["f02", "new"]}),
    "predict arrays": (
        "POST",
        "/v1/predict",
        {"rows": {"x": {"f00": 5}}, "features": ["f01", "new"], "form": "arrays", "level": 0.5},
    ),
    "recommend": ("POST", "/v1/recommend", {"row": "u01", "n": 3}),
    "recommend a stranger": ("POST", "/v1/recommend", {"row": {"f00": 5}, "n": 2, "by": "upper"}),
    "audience": ("POST", "/v1/audience", {"feature": "new", "n": 3, "by": "information"}),
    "suggest": ("POST", "/v1/suggest", {"feature": "new", "n": 3}),
    "similar": ("POST", "/v1/similar", {"feature": "new", "n": 3}),
    "explain": ("POST", "/v1/explain", {"row": "guest", "feature": "f02", "n": 4}),
    "quality": ("GET", "/v1/quality", None),
    "forget a row": ("DELETE", "/v1/rows/guest", None),
    "remove a feature": ("DELETE", "/v1/features/new", None),
    "model after changes": ("GET", "/v1/model", None),
    "unknown feature": ("GET", "/v1/features/f99", None),
    "unknown row": ("POST", "/v1/predict", {"rows": ["u99"], "features": ["f02"]}),
    "value out of range": (
        "POST",
        "/v1/observations",
        {"observations": [{"row": "u01", "feature": "f02", "value": 9}]},
    ),
    "unknown field": ("POST", "/v1/similar", {"feature": "f01", "number": 3}),
    "unknown model": ("POST", "/v1/model", {"path": "/nowhere"}),
    "unknown address": ("GET", "/v1/nothing", None),
}


def lasting(content: Any) -> Any:
    """Leave out what differs from one run to the next: times, and the identity of the model."""
    if isinstance(content, list):
        return [lasting(each) for each in content]
    if not isinstance(content, dict):
        return content
    changing = ("model", "added", "first", "last")
    return {name: "…" if name in changing and isinstance(each, str) else lasting(each)
            for name, each in content.items()}  # fmt: skip


def answers(folder: Path) -> Any:
    """Send all requests to one service, one after the other."""
    model_of("bayes ratings").save(folder / "model")
    found: dict[str, Any] = {}
    app = create_app(folder / "model", f"sqlite:///{folder / 'store.db'}")
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        for name, (method, address, body) in REQUESTS.items():
            answer = client.request(method, address, json=body)
            found[name] = {"status": answer.status_code, "type": answer.headers["content-type"],
                           "body": lasting(answer.json())}  # fmt: skip
        found["predict arrow"] = arrow(client)
        found["metrics"] = metrics(client)
        found["take over a model"] = client.post(
            "/v1/model", json={"path": str(folder / "model")}
        ).status_code
        found["endpoints"] = endpoints(client)
        found["page"] = [client.get(address).status_code for address in ("/", "/docs")]
    return found


def arrow(client: TestClient) -> Any:
    """Ask for a prediction as an Arrow stream."""
    body = {"rows": ["u01"], "features": ["f02", "f03"]}
    answer = client.post("/v1/predict", json=body, headers={"accept": ARROW})
    return pa.ipc.open_stream(io.BytesIO(answer.content)).read_all().to_pydict()


def metrics(client: TestClient) -> Any:
    """Give the names of all metrics."""
    lines = client.get("/metrics").text.splitlines()
    return sorted({line.split(" ")[2] for line in lines if line.startswith("# TYPE headstart")})


def endpoints(client: TestClient) -> Any:
    """List the documented endpoints, and the fields of all bodies."""
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"].items()
    paths = [
        f"{verb} {path}: {each['summary']}"
        for path, verbs in document["paths"].items()
        for verb, each in verbs.items()
    ]
    fields = {name: sorted(each.get("properties", ())) for name, each in sorted(schemas)}
    return {"paths": sorted(paths), "fields": fields}


SCENARIOS = {"requests": answers}
