"""What was acknowledged is never lost: kills, full disks, databases that go away, several workers."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from headstart.errors import InputError, StorageError
from headstart.service.app import create_app
from headstart.service.store import Store
from headstart.service.tables import FACTS
from headstart.service.worker import ServiceSettings
from tests.service.conftest import Start
from tests.service.killing import killed
from tests.service.postgres import Cluster
from tests.service.running import Server, fitted
from tests.service.test_api import mean, observe


def test_kills_lose_nothing_that_was_acknowledged(model_path: Path, url: str) -> None:
    assert killed(model_path, url, kills=3) > 10


def test_kills_lose_nothing_on_postgresql(model_path: Path, cluster: Cluster) -> None:
    assert killed(model_path, cluster.database(), kills=3) > 10


def test_a_service_that_is_told_to_stop_finishes(model_path: Path, url: str) -> None:
    server = Server(model_path, url).start().wait()
    assert server.stop() in (0, -15)  # the server repeats the signal once all is closed
    with Store(url) as store:
        assert store.last_number() == 0


def test_workers_see_each_others_changes_within_a_second(start: Start) -> None:
    first, second = start(poll_seconds=0.25), start(poll_seconds=0.25)
    first.post("/v1/features", json={"name": "new", "observations": {"u1": 5}})
    first.post("/v1/rows", json={"name": "row"})
    observe(first, ("row", "new", 5), ("u2", "f1", 1))
    until(lambda: second.get("/v1/model").headers["x-headstart-number"] == "3", 1.0)
    assert mean(first, "row", "new") == pytest.approx(mean(second, "row", "new"), abs=1e-5)
    second.delete("/v1/rows/row")
    second.delete("/v1/features/new")
    until(lambda: first.get("/v1/model").headers["x-headstart-number"] == "5", 1.0)
    assert first.get("/v1/rows/row").status_code == first.get("/v1/features/new").status_code == 404


def test_workers_that_write_at_the_same_time_lose_no_update(start: Start) -> None:
    """A writer that has not yet seen the other's changes sees them before it writes."""
    first, second = start(poll_seconds=30), start(poll_seconds=30)
    first.post("/v1/features", json={"name": "new"})
    for place in range(12):
        observe((first, second)[place % 2], (f"u{place}", "new", 1 + place % 5))
    assert second.post("/v1/features", json={"name": "new"}).status_code == 409
    observe(first, ("u30", "new", 1))
    assert first.get("/v1/features/new").json()["shots"] == 13
    assert second.get("/v1/features/new").json()["shots"] == 12
    observe(second, ("u31", "new", 1))
    assert second.get("/v1/features/new").json()["shots"] == 14


def test_a_full_disk_is_503_and_recovers(client: TestClient) -> None:
    service = client.service  # type: ignore[attr-defined]
    engine = service.store._engine
    observe(client, ("u1", "f1", 3))

    def limit(connection: object, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]

    event.listen(engine, "connect", limit)
    engine.dispose()
    large = {"name": "big", "metadata": {"tags": ["x" * 9_000] * 3}}
    answer = client.post("/v1/features", json=large)
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "full" in answer.json()["detail"]
    assert answer.headers["retry-after"]
    assert client.get("/v1/features/big").status_code == 404
    assert mean(client, "u1", "f1") > 0  # what is known can still be asked
    event.remove(engine, "connect", limit)
    engine.dispose()
    assert client.post("/v1/features", json=large).status_code == 201
    assert client.get("/v1/features/big").status_code == 200


def test_a_database_that_goes_away_is_503_and_recovers(model_path: Path, cluster: Cluster) -> None:
    url = cluster.database()
    app = create_app(model_path, url, ServiceSettings(poll_seconds=0.1))
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        observe(client, ("u1", "f1", 3))
        cluster.stop()
        try:
            body = {"observations": [{"row": "u2", "feature": "f1", "value": 3}]}
            answer = client.post("/v1/observations", json=body)
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert client.get("/ready").status_code == 503
            assert client.get("/health").status_code == 200
            assert mean(client, "u1", "f1") > 0
        finally:
            cluster.start()
        until(lambda: client.get("/ready").status_code == 200, 10)
        assert client.post("/v1/observations", json=body).status_code == 200
        with Store(url) as store:
            assert len(store.observations_of("f1")) == 2


def test_a_service_waits_for_its_database(model_path: Path, tmp_path: Path) -> None:
    app = create_app(model_path, f"sqlite:///{tmp_path}/later/store.db")
    with TestClient(app, raise_server_exceptions=False) as client:
        until(lambda: app.service.failure is not None, 10)
        assert client.get("/ready").status_code == 503
        assert client.get("/v1/model").status_code == 503
        assert client.get("/health").status_code == 200
        (tmp_path / "later").mkdir()
        until(lambda: client.get("/ready").status_code == 200, 10)


def test_a_model_that_replaces_the_served_one_is_taken_over(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "m"
    fitted().save(path)
    client = start(path=path)
    other = start(path=path)
    client.post("/v1/features", json={"name": "new", "observations": {"u1": 5, "u2": 1}})
    client.post("/v1/rows", json={"name": "row", "observations": {"new": 4}})
    before = client.get("/v1/model").json()["model"]
    fitted(seed=1, more=2).save(path)
    for each in (client, other):
        until(lambda each=each: each.get("/v1/model").json()["model"] != before, 10)
        assert each.get("/v1/features/f17").status_code == 200
        assert each.get("/v1/features/new").json()["shots"] == 3
        assert each.get("/v1/rows/row").json()["observations"] == {"new": 4}
    observe(client, ("u3", "new", 2))


def test_another_folder_is_taken_over_by_all_workers_and_after_a_restart(
    tmp_path: Path, start: Start
) -> None:
    client, other = start(), start()
    client.post("/v1/features", json={"name": "f16", "observations": {"u1": 5}})
    before = client.get("/v1/model").json()["model"]
    fitted(seed=1, more=2).save(tmp_path / "next")
    answer = client.post("/v1/model", json={"path": str(tmp_path / "next")})
    assert answer.status_code == 200, answer.text
    after = answer.json()["model"]
    assert after != before
    assert answer.json()["left_out"] == 0
    assert client.get("/v1/features/f16").json()["observations"]["u1"] == 5  # which the new model knows too
    until(lambda: other.get("/v1/model").json()["model"] == after, 10)
    assert start().get("/v1/model").json()["model"] == after


def test_a_model_that_cannot_be_used_is_not_taken_over(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "m"
    fitted().save(path)
    client = start(path=path)
    before = client.get("/v1/model").json()["model"]
    (path / "model.json").write_text("{}")
    time.sleep(0.5)
    assert client.get("/v1/model").json()["model"] == before
    assert mean(client, "u1", "f1") > 0
    assert client.post("/v1/model", json={"path": str(path)}).status_code == 422


def test_what_is_removed_stays_removed_in_a_new_model(tmp_path: Path, start: Start) -> None:
    client = start()
    client.delete("/v1/rows/u5")
    client.delete("/v1/features/f2")
    fitted(seed=1).save(tmp_path / "next")
    assert client.post("/v1/model", json={"path": str(tmp_path / "next")}).status_code == 200
    assert client.get("/v1/rows/u5").status_code == 404
    assert client.get("/v1/features/f2").status_code == 404


def test_a_store_of_a_newer_version_is_refused(url: str) -> None:
    with Store(url) as store, store.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StorageError, match="newer schema"):
        Store(url)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://x/y", "oracle://x"]
)
def test_stores_that_cannot_be_used_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        Store(url)


def test_the_migrations_make_the_schema_that_the_code_uses(url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    with Store(url) as store, store.reading() as connection:
        difference = compare_metadata(MigrationContext.configure(connection), FACTS.metadata)
    assert not difference


def test_export_writes_what_arrived(client: TestClient, url: str) -> None:
    from headstart.service.views import export

    client.post("/v1/features", json={"name": "new", "metadata": {"year": 2001}, "observations": {"u1": 5}})
    observe(client, ("u1", "new", 4), ("u2", "f1", 2))
    with Store(url) as store:
        observations, metadata = export(store)
    assert observations.to_pylist() == [
        {"row": "u1", "feature": "new", "value": 4.0},
        {"row": "u2", "feature": "f1", "value": 2.0},
    ]
    assert metadata.to_pylist() == [{"feature": "new", "year": 2001}]
    assert np.array_equal(metadata["year"], [2001])


def until(what, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "too late"
        time.sleep(0.02)
