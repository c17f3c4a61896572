"""Kills a service at random moments while clients write, and checks that nothing acknowledged is lost."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import select

from headstart.model import Headstart
from headstart.service.live_model import LiveModel, LiveState, apply
from headstart.service.store import (
    CHANGES,
    OBSERVATIONS,
    Delta,
    Store,
    added_features,
    read_cells,
    read_latest,
    read_since,
    select_cells,
)
from headstart.service.tables import ROWS as STORED_ROWS
from tests.service.running import FEATURES, ROWS, Server
from tests.states import state_of

WRITERS = 3


class Writing(threading.Thread):
    """A client that writes features, rows and observations until it is told to stop."""

    def __init__(self, address: str, own: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.address, self.own = address, own
        self.chance = random.Random(1000 * seed + own)
        self.stop = threading.Event()
        self.cells: dict[tuple[str, str], float] = {}  # acknowledged
        self.unsure: dict[tuple[str, str], float] = {}  # asked for, and perhaps taken
        self.features: list[str] = []
        self.acknowledged = 0

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=10) as client:
            for number in range(10**9):
                if self.stop.is_set():
                    return
                try:
                    self._write(client, number)
                except httpx.HTTPError:
                    time.sleep(0.05)  # killed: it comes back

    def _write(self, client: httpx.Client, number: int) -> None:
        """One change; it is repeated with the same key until it is acknowledged."""
        key, what = f"{self.own}-{self.chance.random()}", self.chance.random()
        rows = [f"u{self.chance.randrange(ROWS)}" for _ in range(3)]
        name = f"new {self.own} {number}"
        if what < 0.15 or not self.features:
            cells = {(row, name): float(self.chance.randint(1, 5)) for row in rows}
            body = {"name": name, "observations": {row: value for (row, _), value in cells.items()}}
            self._until_taken(client, "/v1/features", body, key, cells)
            self.features.append(name)
            return
        if what < 0.25:
            cells = {(f"row {name}", "f1"): 4.0, (f"row {name}", self.chance.choice(self.features)): 2.0}
            body = {"name": f"row {name}", "observations": {of: value for (_, of), value in cells.items()}}
            self._until_taken(client, "/v1/rows", body, key, cells)
            return
        own = self.chance.choice([*self.features, f"f{self.chance.randrange(FEATURES)}"])
        # Known features are written by one writer each, so that the last value is known.
        own = own if own in self.features else f"f{self.own}"
        cells = {(row, own): float(self.chance.randint(1, 5)) for row in rows}
        lines = [{"row": row, "feature": of, "value": value} for (row, of), value in cells.items()]
        self._until_taken(client, "/v1/observations", {"observations": lines}, key, cells)

    def _until_taken(
        self, client: httpx.Client, path: str, body: dict, key: str, cells: dict[tuple[str, str], float]
    ) -> None:
        self.unsure = cells
        while not self.stop.is_set():
            try:
                answer = client.post(path, json=body, headers={"Idempotency-Key": key})
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code in (200, 201, 409):  # 409: a row that was taken before the kill
                self.cells |= cells
                self.unsure = {}
                self.acknowledged += 1
                return
            if answer.status_code != 503:
                raise AssertionError(answer.text)
            time.sleep(0.05)


def killed(model: Path, url: str, kills: int, seed: int = 0) -> int:
    """Kill a service so many times while clients write; return how many changes were acknowledged."""
    chance = random.Random(seed)
    server = Server(model, url).start().wait()
    writers = [Writing(server.address, own, seed) for own in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(kills):
            _wait_for(writers)
            time.sleep(chance.uniform(0.0, 0.5))
            server.kill()
            server.start().wait()
        _wait_for(writers)
        server.kill()  # in the middle of writing, too
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.join(20)
        server.start().wait()
        _check(server, model, url, writers)
    finally:
        for writer in writers:
            writer.stop.set()
        server.kill()
    return sum(writer.acknowledged for writer in writers)


def _wait_for(writers: list[Writing], changes: int = 4) -> None:
    """Wait until so many more changes are acknowledged: on a busy machine that takes a while."""
    before, end = sum(writer.acknowledged for writer in writers), time.monotonic() + 20
    while sum(writer.acknowledged for writer in writers) < before + changes and time.monotonic() < end:
        time.sleep(0.01)


def _check(server: Server, model: Path, url: str, writers: list[Writing]) -> None:
    with Store(url) as store:
        with store.reading() as connection:
            held = {(cell.row, cell.feature): cell.value for cell in read_cells(connection)}
        for writer in writers:
            for cell, value in writer.cells.items():
                possible = {value, writer.unsure.get(cell, value)}
                assert held.get(cell) in possible, f"lost: {cell} = {value}; held {held.get(cell)}"
        uninterrupted = one_by_one(store, model)
        rebuilt = LiveModel(store, model).snapshot
    names, features = list(uninterrupted.model.rows), list(uninterrupted.model.feature_store)
    expected = Headstart.from_state(uninterrupted.model).predict(names, features)
    for found in (rebuilt.model.predict(names, features), _served(server, names, features)):
        mean, std = (found.mean, found.std) if hasattr(found, "mean") else found
        np.testing.assert_allclose(mean, expected.mean, atol=1e-4)
        np.testing.assert_allclose(std, expected.std, rtol=1e-4)


def _served(server: Server, rows: list[str], features: list[str]) -> tuple[np.ndarray, np.ndarray]:
    body = {"rows": rows, "features": features, "form": "arrays"}
    answer = httpx.post(f"{server.address}/v1/predict", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return np.array(content["mean"]), np.array(content["std"])


def one_by_one(store: Store, model: Path) -> LiveState:
    """The state of a service that was never interrupted: each change of the log by itself, in order."""
    state = LiveState.of(state_of(Headstart.load(model)))
    with store.reading() as connection:
        numbers = [
            each.number for each in connection.execute(select(CHANGES.c.number).order_by(CHANGES.c.number))
        ]
        features = added_features(connection)
        added = {
            each.number: each.name
            for each in connection.execute(select(STORED_ROWS.c.number, STORED_ROWS.c.name))
            if each.number is not None
        }
        for number in numbers:
            cells = read_latest(connection.execute(select_cells().where(OBSERVATIONS.c.number == number)))
            kind, name = connection.execute(
                select(CHANGES.c.kind, CHANGES.c.name).where(CHANGES.c.number == number)
            ).one()
            new = {name: features[name]} if kind == "add_feature" else {}
            rows = {added[number]: None} if number in added else {}
            state = apply(state, Delta(features=new, rows=rows, cells=cells))
        assert not read_since(connection, numbers[-1] if numbers else 0, state.model.rows)
    return state
