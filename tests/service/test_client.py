"""The Python client against a service."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from headstart.client import Client, ServiceError
from headstart.model import Headstart
from headstart.service.store import read_cells
from headstart.table import Table
from tests.service.conftest import Start


@pytest.fixture
def asking(client: TestClient) -> Client:
    return Client("http://localhost", transport=client._transport, retries=1)


def test_every_verb(asking: Client) -> None:
    name = "Dune 3/π"
    with asking as films:
        assert films.add_feature(name, {"year": 2026}, {"u1": 5}, kind="rating:1:5")["number"] == 1
        assert films.add_row("guest", observations={name: 4, "f1": 2})["number"] == 2
        assert films.observe([("u2", name, 4), ("u3", name, 1)])["number"] == 3
        (cell,) = films.predict(["u3"], [name])
        assert (cell["row"], cell["feature"]) == ("u3", name)
        arrays = films.predict_arrays({"x": {name: 5}}, [name, "f1"])
        assert arrays["mean"].shape == arrays["low"].shape == (1, 2)
        assert np.all(arrays["low"] <= arrays["high"])
        assert len(films.recommend("guest", 3)) == len(films.recommend({"f1": 3}, 3, by="upper")) == 3
        assert len(films.audience(name, 4)) == len(films.suggest(name, 4)) == 4
        assert len(films.similar(name, 2)) == 2
        assert films.explain("u1", name)["feature"] == name
        assert films.features(search="dune")["features"][0]["name"] == name
        assert films.feature(name)["shots"] == 4
        assert [point["shots"] for point in films.history(name)] == [0, 1, 2, 3, 4]
        assert films.row("guest")["observations"] == {name: 4, "f1": 2}
        assert films.model()["added_features"] == 1
        assert films.schema()["features"][0]["name"] == "year"
        assert films.quality()["calibration"]
        films.remove_row("guest")
        films.remove_feature(name)
        with pytest.raises(ServiceError, match="unknown feature") as caught:
            films.feature(name)
        assert caught.value.status == 404


def test_times_of_observations_are_sent() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"model": "m", "number": len(bodies)})

    films = Client(transport=httpx.MockTransport(answer))
    day = date(2026, 5, 1)
    films.observe([("u1", "f1", 3), ("u2", "f1", 4, "2026-05-02")], time=day)
    films.observe([("u1", "f1", 3)])
    films.observe([("u1", "f1", 4, 12.5), ("u2", "f1", 4, datetime(2026, 5, 1, 8, tzinfo=UTC))])
    observed, timeless, mixed = bodies
    assert [line["time"] for line in observed["observations"]] == ["2026-05-01", "2026-05-02"]
    assert timeless["observations"] == [{"row": "u1", "feature": "f1", "value": 3, "time": None}]
    assert [line["time"] for line in mixed["observations"]] == [12.5, "2026-05-01T08:00:00+00:00"]


def test_times_of_observations_are_stored(start: Start, tmp_path: Path) -> None:
    table = Table.read(
        pa.table({
            "row": [f"u{i}" for i in range(12) for _ in range(6)],
            "feature": [f"f{j}" for _ in range(12) for j in range(6)],
            "value": [(i * j) % 5 + 1 for i in range(12) for j in range(6)],
            "when": [float(i + j) for i in range(12) for j in range(6)],
        }),
        time="when", kinds="rating:1:5",
    )  # fmt: skip
    path = tmp_path / "aging.headstart"
    Headstart(adapter="bayes", half_life=10, quiet=True).fit(table).save(path)
    served = start(path)
    films = Client("http://localhost", transport=served._transport)
    films.observe([("u1", "f1", 3), ("u2", "f1", 4, 21)], time=20)
    films.add_feature("new")
    films.add_row("guest")
    films.observe([("u1", "new", 5, 22), ("guest", "f2", 2, 23)])
    with served.service.store.reading() as connection:
        times = {(cell.row, cell.feature): cell.time for cell in read_cells(connection)}
    assert times == {("u1", "f1"): 20, ("u2", "f1"): 21, ("u1", "new"): 22, ("guest", "f2"): 23}


def test_errors_name_the_field(asking: Client) -> None:
    with pytest.raises(ServiceError, match="unknown row 'nobody'") as caught:
        asking.observe([("u1", "f1", 3), ("nobody", "f1", 3)])
    assert caught.value.status == 422
    assert caught.value.fields == ["/observations/1"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        asking.observe([("u1", "f1", float("nan"))])


def test_a_change_whose_answer_is_lost_is_repeated_and_counts_once(client: TestClient) -> None:
    lost = iter([True])

    class Losing(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = client._transport.handle_request(request)
            if next(lost, False):
                raise httpx.ReadError("the connection broke")
            return answer

    films = Client("http://localhost", transport=Losing())
    assert films.add_feature("once")["number"] == 1
    assert films.observe([("u1", "once", 3)])["number"] == 2


def test_no_service() -> None:
    with pytest.raises(ServiceError, match="cannot be reached"):
        Client("http://127.0.0.1:9", timeout=1, retries=0).model()
    silly = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>"))
    with pytest.raises(ServiceError, match="not JSON"):
        Client(transport=silly).model()
