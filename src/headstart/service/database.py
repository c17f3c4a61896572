"""Connect to SQLite or PostgreSQL: engines, transactions, and statements that are compiled once."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from sqlalchemy import ClauseElement, Connection, DateTime, Engine, create_engine, event
from sqlalchemy.engine import Dialect, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from headstart.errors import InputError, StorageError

_LOCK = 0x4EAD57A7  # the key of the writers' advisory lock in PostgreSQL

_WAIT = 10.0  # seconds that a writer waits for another one

_SILENCE = 15.0  # seconds that PostgreSQL may take for an answer; longer than it waits for a lock


class UnavailableError(StorageError):
    """The database cannot be reached or cannot write. Nothing was changed; it may work again later."""


def open_engine(url: str) -> Engine:
    """Return an engine for ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(
            f"{redact_url(url)!r} is not the URL of a store; use sqlite:///FILE or "
            "postgresql://USER@HOST/DATABASE"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise InputError("a store in memory would be lost; name a file, as sqlite:///store.db")
        options = {"timeout": _WAIT, "check_same_thread": False}
        engine = create_engine(parsed, connect_args=options, paramstyle="named")
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    if backend == "postgresql":
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        try:
            engine = create_engine(
                parsed, pool_pre_ping=True, connect_args={"connect_timeout": 5, "tcp_user_timeout": 15_000}
            )
            event.listen(engine, "do_connect", _connect_postgresql)
            return engine
        except (ImportError, NoSuchModuleError):
            raise InputError(
                "a store in PostgreSQL needs psycopg; install it with pip install 'headstart[postgres]'"
            ) from None
    raise InputError(f"a store is kept in SQLite or PostgreSQL; got {backend!r}")


def redact_url(url: str) -> str:
    """Return the URL of a store without its password, also if it is not a valid URL."""
    user, at, address = url.rpartition("@")
    scheme, separator, name = user.rpartition("://")
    if at and ":" in name:
        user = f"{scheme}{separator}{name.partition(':')[0]}:***"
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", f"{user}{at}{address}")


def _connect_postgresql(_: Any, __: Any, arguments: Any, parameters: Any) -> Any:
    """Return a connection that breaks off when the server is silent for too long.

    A database that is cut off without a word would otherwise be waited for without end.
    """
    import psycopg
    from psycopg.abc import PQGen

    class LimitedConnection(psycopg.Connection[Any]):
        def wait(self, gen: PQGen[Any], *options: Any, **named: Any) -> Any:
            try:
                return super().wait(_limit_silence(gen), *options, **named)
            except TimeoutError:
                self.pgconn.finish()
                raise psycopg.OperationalError(
                    f"the database has been silent for {_SILENCE:g} seconds"
                ) from None

    return LimitedConnection.connect(*arguments, **parameters)


def _limit_silence(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Pass on the steps of an operation; raise TimeoutError if the server is silent for too long.

    psycopg sends 0 to a step about ten times a second while the connection is not ready.
    """
    last, ready = time.monotonic(), None
    while True:
        try:
            wanted = steps.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield wanted
        if ready:
            last = time.monotonic()
        elif time.monotonic() - last > _SILENCE:
            raise TimeoutError


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # ``_begin_sqlite`` begins transactions
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    _run(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")


_BEGIN_POSTGRESQL = f"""
    SET LOCAL lock_timeout = '{1000 * _WAIT:.0f}ms';
    SET LOCAL idle_in_transaction_session_timeout = '120s';
    SELECT pg_advisory_xact_lock({_LOCK})
"""  # the server ends a transaction whose client was cut off, so that others can write


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction, committed at the end; other writers on the same store wait for it."""
    with available(), engine.connect().execution_options(writes=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            _run(connection, _BEGIN_POSTGRESQL)
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that reads a consistent state of the store."""
    with available(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


class Statement:
    """A statement that is compiled once for each database and then run by its driver.

    SQLAlchemy takes twenty times as long as SQLite for a statement of one line. All statements of an
    observation together would take half as long as its arithmetic.

    Parameters
    ----------
    query : ClauseElement
        The query, with named parameters.
    columns : sequence of str, optional
        The columns that an INSERT sets, which are its parameters.
    """

    def __init__(self, query: ClauseElement, columns: Sequence[str] | None = None) -> None:
        self._query, self._columns = query, columns
        self._compiled: dict[str, tuple[str, dict[str, Any]]] = {}  # by database: text, converters of times

    def fetch(self, connection: Connection, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run the query and return its lines."""
        text, converters = self._compile(connection.dialect)
        return list(_run(connection, text, _convert(parameters, converters)).fetchall())

    def run(self, connection: Connection, lines: Iterable[Mapping[str, Any]]) -> None:
        """Run the statement once for each of ``lines`` of parameters."""
        text, converters = self._compile(connection.dialect)
        _run(connection, text, [_convert(line, converters) for line in lines])

    def _compile(self, dialect: Dialect) -> tuple[str, dict[str, Any]]:
        """Return the text of the statement, and the functions that convert times for the driver."""
        if dialect.name not in self._compiled:
            compiled = cast(SQLCompiler, self._query.compile(dialect=dialect, column_keys=self._columns))
            converters = {
                name: convert
                for name, parameter in compiled.binds.items()
                if isinstance(parameter.type, DateTime)
                and (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
            }
            self._compiled[dialect.name] = str(compiled), converters
        return self._compiled[dialect.name]


def _convert(parameters: Mapping[str, Any], converters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return parameters as a driver takes them."""
    if not converters:
        return parameters
    return {**parameters, **{name: convert(parameters[name]) for name, convert in converters.items()}}


def _run(connection: Connection, text: str, *parameters: Any) -> Any:
    """Run a statement by the driver, for each of its ``parameters`` if they are a list; return the cursor."""
    cursor = connection.connection.cursor()
    try:
        if parameters and isinstance(parameters[0], list):
            cursor.executemany(text, *parameters)
        else:
            cursor.execute(text, *parameters)
    except connection.dialect.loaded_dbapi.Error as error:
        if connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, cursor):
            connection.invalidate(error)
        invalid = isinstance(error, connection.dialect.loaded_dbapi.DataError)
        raise (_refusal(error) if invalid else _unavailable(error)) from error
    return cursor


@contextmanager
def available() -> Iterator[None]:
    """Turn errors of the database into UnavailableError, and values that it cannot hold into InputError."""
    try:
        yield
    except DataError as error:
        raise _refusal(error.orig) from error
    except DBAPIError as error:
        raise _unavailable(error.orig) from error
    except SQLAlchemyError as error:
        raise UnavailableError(f"the store cannot be used now: {type(error).__name__}") from error


def _refusal(error: BaseException | None) -> InputError:
    return InputError(f"the store cannot hold a value: {_first_line(error)}")


def _unavailable(error: BaseException | None) -> UnavailableError:
    return UnavailableError(f"the store cannot be used now: {_first_line(error)}")


def _first_line(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0][:200]
