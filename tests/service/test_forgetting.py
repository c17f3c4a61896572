"""Of a removed row nothing stays: not in the store, its write-ahead log or its backups."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import MetaData, String, cast, select
from starlette.testclient import TestClient

from headstart.service.app import create_app
from headstart.service.store import Cell, Store, insert_row, remove_row
from headstart.service.worker import ServiceSettings
from tests.limits import Limits
from tests.service.conftest import Start
from tests.service.postgres import Cluster
from tests.service.test_durability import until

NAMES = ["secret-row", "Zoë Ångström", "a/b secret?", "0042-secret", "s" * 300, "%73ecret"]


def occurrences(folder: Path, name: str) -> list[str]:
    """Return the files below a folder that contain a name, as such or as a part of an address."""
    spellings = {name.encode(), quote(name, safe="").encode(), quote(name).encode()}
    spellings |= {name.encode("unicode_escape")}  # as JSON writes it
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(spelling in path.read_bytes() for spelling in spellings)
    ]


def use_and_remove(client: TestClient, name: str) -> None:
    """Name a row in every way that the service knows, each with a key, and remove it."""
    address = f"/v1/rows/{quote(name, safe='')}"
    calls = [
        ("POST", "/v1/rows", {"name": name, "observations": {"f1": 5}}),
        ("POST", "/v1/observations", {"observations": [{"row": name, "feature": "f2", "value": 4}]}),
        ("POST", "/v1/features", {"name": f"of {name[:2]}", "observations": {name: 2}}),
        ("DELETE", address, None),
    ]
    for method, path, body in calls:
        for _ in range(2):  # the second is the answer to a repeated request
            headers = {"idempotency-key": f"{method} {name.encode().hex()}"}
            answer = client.request(method, path, json=body, headers=headers)
            assert answer.status_code in (200, 201), answer.text
    assert client.get(address).status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_removed_row_is_nowhere(client: TestClient, tmp_path: Path, name: str) -> None:
    store = tmp_path / "store.db"
    use_and_remove(client, name)
    with sqlite3.connect(store) as source, sqlite3.connect(tmp_path / "backup.db") as backup:
        source.backup(backup)
    (tmp_path / "dump.sql").write_text("\n".join(sqlite3.connect(store).iterdump()))
    until(lambda: not occurrences(tmp_path, name), 5)


def test_a_key_that_is_a_name_is_not_kept(client: TestClient, tmp_path: Path) -> None:
    body = {"observations": [{"row": "u1", "feature": "f1", "value": 4}]}
    client.post("/v1/observations", json=body, headers={"idempotency-key": "secret-key"})
    assert not occurrences(tmp_path, "secret-key")


def test_pages_that_sqlite_rearranged_keep_no_copies(tmp_path: Path) -> None:
    """SQLite overwrites deleted lines, but not the copies that stay when it moves lines between pages."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        shuffle = random.Random(3)
        names = [f"zq{i:05d}" + "x" * shuffle.randrange(80) for i in range(1500)]
        shuffle.shuffle(names)
        with store.writing() as connection:
            for name in names:
                cells = [Cell(name, f"f{shuffle.randrange(30)}", 1.0) for _ in range(shuffle.randrange(4))]
                insert_row(connection, name, {"a": name} if shuffle.random() < 0.5 else None, cells)
        removed = names[:300]
        for name in removed:
            with store.writing() as connection:
                remove_row(connection, name)
        store.clean()
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [name for name in removed if name[:7].encode() in content] == []
    assert sum(name[:7].encode() in content for name in names[300:]) == 1200


def test_the_file_is_not_written_anew(tmp_path: Path) -> None:
    """Writing a large file anew would stop all other changes for seconds, and needs as much space again."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        for name in ("secret-row", "another-row"):
            with store.writing() as connection:
                insert_row(connection, name, None, [Cell(name, f"f{i}", 1.0) for i in range(2000)])
        pages = store_pages(tmp_path)
        with store.writing() as connection:
            remove_row(connection, "secret-row")
        store.clean()
        assert store_pages(tmp_path) == pages
        assert not occurrences(tmp_path, "secret-row")


def store_pages(folder: Path) -> int:
    connection = sqlite3.connect(folder / "store.db")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    return int(pages)


def test_forgetting_beside_a_reader_blocks_no_one(client: TestClient, tmp_path: Path) -> None:
    """Another process that reads the file delays the erasure, not the removal and not other changes."""
    reader = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM changes").fetchone()
    start = time.monotonic()
    use_and_remove(client, "secret-row")
    for value in range(1, 6):
        body = {"observations": [{"row": "u1", "feature": "f1", "value": value}]}
        assert client.post("/v1/observations", json=body).status_code == 200
    assert time.monotonic() - start < 5
    reader.execute("COMMIT")
    until(lambda: not occurrences(tmp_path, "secret-row"), 20)


def test_a_removal_whose_erasure_fails_is_acknowledged(client: TestClient, limits: Limits) -> None:
    """On a nearly full disk the commit may fit and the new file may not."""
    limits(store_clean_wait_ms="no number, as if the disk were full;")
    use_and_remove(client, "secret-row")
    assert client.get("/ready").status_code == 200


def test_what_a_stopped_service_left_is_erased_by_the_next(start: Start, tmp_path: Path, url: str) -> None:
    with Store(url) as store:
        with store.writing() as connection:
            insert_row(connection, "secret-row", None, [Cell("secret-row", "f1", 3.0)])
        with store.writing() as connection:
            remove_row(connection, "secret-row")
        assert store.fact("clean") == "2"
    client = start()
    service = client.service  # type: ignore[attr-defined]
    until(lambda: service.store.fact("clean") is None, 5)
    assert not occurrences(tmp_path, "secret-row")


def test_the_name_is_in_no_table_of_postgresql(model_path: Path, cluster: Cluster) -> None:
    url = cluster.database()
    app = create_app(model_path, url, ServiceSettings(poll_seconds=0.1))
    with TestClient(app, raise_server_exceptions=False) as client:
        app.service.wait()
        for name in NAMES:
            use_and_remove(client, name)
        with app.service.store.reading() as connection:
            tables = MetaData()
            tables.reflect(connection)
            content = str(
                [
                    connection.execute(select(*(cast(column, String) for column in table.columns))).all()
                    for table in tables.tables.values()
                ]
            )
    assert [name for name in NAMES if name in content or quote(name, safe="") in content] == []


@pytest.mark.parametrize("different", ["method", "path", "end of the key", "start of the key"])
def test_keys_are_apart(client: TestClient, different: str) -> None:
    """A key counts for one method and path, in its whole length."""
    key, client_address = "k" * 1000, "/v1/features"
    first = client.post(client_address, json={"name": "a"}, headers={"idempotency-key": key})
    assert first.status_code == 201
    if different == "method":
        answer = client.delete("/v1/features/a", headers={"idempotency-key": key})
    elif different == "path":
        answer = client.post("/v1/rows", json={"name": "a"}, headers={"idempotency-key": key})
    else:
        other = key[:-1] + "x" if different == "end of the key" else "x" + key[1:]
        answer = client.post(client_address, json={"name": "b"}, headers={"idempotency-key": other})
    assert answer.status_code in (200, 201)
    assert "idempotency-replayed" not in answer.headers
    assert answer.json()["number"] == first.json()["number"] + 1


def test_a_name_that_begins_like_an_earlier_path_is_another_request(client: TestClient) -> None:
    """Long names once pushed the path out of the key."""
    names = ["a" * 400, "b" + "a" * 399]
    for name in names:
        assert client.post("/v1/rows", json={"name": name}).status_code == 201
    for name in names:
        answer = client.delete(f"/v1/rows/{name}", headers={"idempotency-key": "k"})
        assert "idempotency-replayed" not in answer.headers
        assert client.get(f"/v1/rows/{name}").status_code == 404


@pytest.mark.parametrize("keys", [[""], ["k" * 1001], ["a", "b"], ["a", "a"], ["tab\there"]])
def test_keys_that_cannot_be_used_are_refused(client: TestClient, keys: list[str]) -> None:
    headers = httpx.Headers([("idempotency-key", key) for key in keys])
    answer = client.post("/v1/rows", json={"name": "a"}, headers=headers)
    assert answer.status_code == 400
    assert "Idempotency-Key" in answer.json()["detail"]
    assert client.get("/v1/rows/a").status_code == 404
