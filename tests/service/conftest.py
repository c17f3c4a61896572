"""One small model for all tests of the service, and clients of services with stores of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from headstart.service.app import create_app
from headstart.service.worker import ServiceSettings
from tests.service.postgres import Cluster, why_not
from tests.service.running import fitted

Start = Callable[..., TestClient]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("service") / "films.headstart"
    fitted().save(path)
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def start(model_path: Path, url: str) -> Iterator[Start]:
    """Start a service in this process; several share one store."""
    with ExitStack() as stack:

        def started(path: Path = model_path, **settings: object) -> TestClient:
            app = create_app(path, url, ServiceSettings(**{"poll_seconds": 0.05, **settings}))
            client = stack.enter_context(TestClient(app, raise_server_exceptions=False))
            client.service = app.service  # type: ignore[attr-defined]
            app.service.wait()
            return client

        yield started


@pytest.fixture
def client(start: Start) -> TestClient:
    return start()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A PostgreSQL cluster that is thrown away."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster() as made:
        yield made
