"""Connections to the database of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from headstart.errors import InputError, StorageError

_LOCK = 0x4EAD57A7  # of writers, in a PostgreSQL database
_WAIT = 10.0  # seconds for which a writer waits for another one


class UnavailableError(StorageError):
    """The database cannot be reached or cannot write. Nothing was changed; it may work again later."""


def open_engine(url: str) -> Engine:
    """An engine for ``sqlite:///place.db`` or ``postgresql://user@host/database``."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InputError(
            f"{url!r} is not the URL of a store; use sqlite:///FILE or postgresql://USER@HOST/DATABASE"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise InputError("a store in memory would be lost; name a file, as sqlite:///store.db")
        engine = create_engine(parsed, connect_args={"timeout": _WAIT, "check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if backend == "postgresql":
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            return create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": 5})
        except (ImportError, NoSuchModuleError):
            raise InputError(
                "a store in PostgreSQL needs psycopg; install it with pip install 'headstart[postgres]'"
            ) from None
    raise InputError(f"a store is kept in SQLite or PostgreSQL; got {backend!r}")


def shown_url(url: str) -> str:
    """The URL of a store without its password."""
    return make_url(url).render_as_string(hide_password=True)


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin as ``_begin_sqlite`` says
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction during which no other writer is at work on the same store; committed at the end."""
    with available(), engine.connect().execution_options(writes=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL lock_timeout = '10s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads one moment of the store."""
    with available(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def available() -> Iterator[None]:
    """Say plainly that the database is not available."""
    try:
        yield
    except DBAPIError as error:
        raise UnavailableError(f"the store cannot be used now: {_short(error.orig)}") from error
    except SQLAlchemyError as error:
        raise UnavailableError(f"the store cannot be used now: {type(error).__name__}") from error


def _short(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]
