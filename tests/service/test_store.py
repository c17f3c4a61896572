"""What observations write to the store: statements that are compiled once do what SQLAlchemy does."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from headstart.errors import InputError
from headstart.model.staleness import ErrorSums
from headstart.service.database import Statement, UnavailableError
from headstart.service.store import Cell, Store, insert_observations, read_cells
from headstart.service.tables import CHANGES, OBSERVATIONS, REMOVED_FEATURES
from tests.service.postgres import Cluster

AT = datetime(2026, 5, 17, 12, 30, 59, 123456, tzinfo=UTC)
LINE = {"at": AT, "kind": "observe", "name": None, "observations": 3, "excess": 0.25, "squares": None}


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.db"
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        url = cluster.database()
    with Store(url) as opened:
        yield opened


def test_a_statement_stores_and_reads_what_sqlalchemy_does(store: Store) -> None:
    with store.writing() as connection:
        Statement(insert(CHANGES), list(LINE)).run(connection, [LINE])
        connection.execute(insert(CHANGES), [LINE])
    with store.reading() as connection:
        first, second = (line[1:] for line in connection.execute(select(CHANGES)).all())
        assert first == second
        query = select(CHANGES.c.number, CHANGES.c.excess)
        assert Statement(query).fetch(connection) == [tuple(line) for line in connection.execute(query)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 300])
def test_observations_are_stored_with_their_changes_and_rows(store: Store, count: int) -> None:
    """Rows that the store knows and new ones, in any number, are told apart, also in a second transaction."""
    cells = [
        Cell(f"row {i % 200}", f"feature {i}", i / 3, None, 1.5 if i % 2 else None) for i in range(count)
    ]
    with store.writing() as connection:
        numbers = insert_observations(connection, [([cell], ErrorSums(1, 0.5, 0.25)) for cell in cells])
    assert numbers == sorted(set(numbers))
    again = [Cell("row 0", "another", 2.0), Cell("new", "another", 3.0)]
    with store.writing() as connection:
        (later,) = insert_observations(connection, [(again, ErrorSums())])
    assert later > numbers[-1]
    with store.reading() as connection:
        assert read_cells(connection) == [*cells, *again]
        stored = connection.execute(select(OBSERVATIONS.c.number).order_by(OBSERVATIONS.c.id)).scalars()
        assert list(stored) == [*numbers, later, later]


def test_errors_of_a_driver_are_those_of_the_store(store: Store) -> None:
    line = {"name": "a feature", "number": 1}
    removed = Statement(insert(REMOVED_FEATURES), list(line))
    with pytest.raises(UnavailableError, match="cannot be used now"), store.writing() as connection:
        removed.run(connection, [line, line])  # the name is the primary key
    with store.reading() as connection:
        assert connection.execute(select(REMOVED_FEATURES)).all() == []
    with store.writing() as connection:  # the connection can be used again
        removed.run(connection, [line])


def test_a_value_that_a_database_cannot_hold_is_refused(cluster: Cluster) -> None:
    with (
        Store(cluster.database()) as store,
        pytest.raises(InputError, match="cannot hold"),
        store.writing() as connection,
    ):
        Statement(insert(CHANGES), list(LINE)).run(connection, [{**LINE, "kind": "x" * 100}])
