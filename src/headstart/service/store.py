"""Store all that arrived at a service, and its tokens, in a database."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from headstart.closing import Closing
from headstart.errors import InputError, StorageError
from headstart.model.state import Arrived


class Cell(NamedTuple):
    """One observation, by names."""

    row: str
    feature: str
    value: float
    time: float | None = None  # in a model whose observations age


@dataclass(frozen=True)
class Delta:
    """Changes in the order in which they are applied: what goes, then what comes, then observations.

    Attributes
    ----------
    lost_features, lost_rows : list of str
        Features to remove and rows to forget; names that are not there are passed over.
    features : dict
        ``{name: {"metadata": …, "kind": …}}`` of new features.
    rows : dict
        ``{name: metadata}`` of new rows; the metadata may be None.
    cells : list of Cell
        Observations in the order of their first arrival, each cell once, with its latest value.
    """

    lost_features: Sequence[str] = ()
    lost_rows: Sequence[str] = ()
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    cells: Sequence[Cell] = ()

    def __bool__(self) -> bool:
        return bool(self.lost_features or self.lost_rows or self.features or self.rows or self.cells)


METADATA = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only in an INTEGER

# One line for each committed change; workers apply them in the order of their numbers.
CHANGES = Table(
    "changes",
    METADATA,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("kind", String(16), nullable=False),  # feature, unfeature, row, forget or observe
    Column("name", Text),  # of the feature or row; of a forgotten row only a digest
    Column("observations", Integer, nullable=False, default=0),
    Column("excess", Float),  # of the surprise of these observations, summed; see ``Arrived``
    Column("squares", Float),
    sqlite_autoincrement=True,
)


def _added(things: str, *columns: Column[Any]) -> Table:
    """A table of what was added by a change and is still there, by name."""
    return Table(
        things,
        METADATA,
        Column("name", Text, primary_key=True),
        Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
        Column("at", DateTime(timezone=True), nullable=False),
        *columns,
    )


# Metadata is JSON.
FEATURES = _added("features", Column("kind", Text), Column("metadata", Text, nullable=False))

ROWS = _added("rows", Column("metadata", Text))

# All observations that arrived, corrections after what they correct.
OBSERVATIONS = Table(
    "observations",
    METADATA,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
    Column("row", Text, nullable=False),
    Column("feature", Text, nullable=False),
    Column("value", Float(53), nullable=False),
    Column("time", Float(53)),  # when it was made, of a model whose observations age
    sqlite_autoincrement=True,
)

_CELL = tuple(OBSERVATIONS.c[name] for name in Cell._fields)

Index("observations_by_row", OBSERVATIONS.c.row)

Index("observations_by_feature", OBSERVATIONS.c.feature)

# What a model must not show although its folder holds it. Of rows only a digest of the name is kept.
REMOVED_FEATURES = Table(
    "removed_features",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("number", Number, nullable=False),
)

FORGOTTEN_ROWS = Table(
    "forgotten_rows",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("number", Number, nullable=False),
)

# Idempotency keys: the same key and body gets the same answer.
REQUESTS = Table(
    "requests",
    METADATA,
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),  # of the body
    Column("answer", Text, nullable=False),  # JSON; it has no names of rows
    Column("at", DateTime(timezone=True), nullable=False, index=True),
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),  # of the secret part
    Column("scopes", String(64), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("revoked", DateTime(timezone=True)),
)

# Single values: the salt of digests, and the model that was taken over.
FACTS = Table(
    "facts",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)


PLACE = Path(__file__).parent / "migrations"


def script_directory() -> ScriptDirectory:
    """The migrations of this version."""
    config = Config()
    config.set_main_option("script_location", str(PLACE))
    config.set_main_option("version_locations", str(PLACE / "versions"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def migrate(connection: Connection) -> None:
    """Run the migrations that a store lacks, in the transaction of this connection.

    Raises
    ------
    StorageError
        If the store was made by a newer version.
    """
    scripts = script_directory()
    present = MigrationContext.configure(connection).get_current_revision()
    if present == scripts.get_current_head():
        return
    known = {each.revision for each in scripts.walk_revisions()}
    if present is not None and present not in known:
        raise StorageError(f"the store has a newer schema ({present}); upgrade headstart to use it")
    config = Config()

    def upgrade(revision: Any, _: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(config, scripts, fn=upgrade) as context:
        context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=False)
        context.run_migrations()


@dataclass(frozen=True)
class Stored:
    """A feature or row that was added: its metadata as given, its kind as said, and when it came."""

    name: str
    at: datetime
    metadata: dict[str, Any]
    kind: str | None = None


@dataclass(frozen=True)
class Token:
    """What is known of an API token; never its secret."""

    id: str
    name: str
    digest: bytes
    scopes: frozenset[str]
    at: datetime
    revoked: datetime | None = None


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


def redact_url(url: str) -> str:
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


_AT_ONCE = 500  # names in one question


def read_last_number(connection: Connection) -> int:
    """The number of the last change; 0 of an empty store."""
    return int(connection.execute(select(func.max(CHANGES.c.number))).scalar() or 0)


def digest_of(connection: Connection, row: str) -> str:
    """What a store keeps of the name of a forgotten row."""
    return digest(salt_of(connection), row)


def salt_of(connection: Connection) -> str:
    """The store's own salt of digests."""
    return str(connection.execute(select(FACTS.c.value).where(FACTS.c.key == "salt")).scalar_one())


def digest(salt: str, row: str) -> str:
    """The digest of a row's name."""
    return hashlib.sha256(f"{salt}\0{row}".encode()).hexdigest()


def read_all(connection: Connection, rows: Sequence[str]) -> Delta:
    """All that is in the store, for a model that holds these rows."""
    gone = {each.digest for each in connection.execute(select(FORGOTTEN_ROWS.c.digest))}
    salt = salt_of(connection) if gone else ""
    lost = [row for row in rows if digest(salt, row) in gone] if gone else []
    added = added_features(connection)
    removed = [each.name for each in connection.execute(select(REMOVED_FEATURES.c.name))]
    return Delta(
        lost_features=removed,
        lost_rows=lost,
        features=added,
        rows=_rows(connection, None),
        cells=read_cells(connection),
    )


def read_since(connection: Connection, number: int, rows: Sequence[str]) -> Delta:
    """What has changed after the change of this number, for a model that holds these rows."""
    later = CHANGES.c.number > number
    lines = connection.execute(select(CHANGES.c.kind, CHANGES.c.name).where(later).order_by(CHANGES.c.number))
    lost_features: dict[str, None] = {}
    gone: set[str] = set()
    for kind, name in lines:
        if kind == "unfeature":
            lost_features[name] = None
        elif kind == "forget":
            gone.add(name)
    salt = salt_of(connection) if gone else ""
    lost_rows = [row for row in rows if digest(salt, row) in gone] if gone else []
    return Delta(
        lost_features=list(lost_features),
        lost_rows=lost_rows,
        features=added_features(connection, number),
        rows=_rows(connection, number),
        cells=_cells_since(connection, number),
    )


def _cells_since(connection: Connection, number: int) -> list[Cell]:
    query = select(*_CELL).where(OBSERVATIONS.c.number > number).order_by(OBSERVATIONS.c.id)
    return read_latest(connection.execute(query))


def read_latest(lines: Any) -> list[Cell]:
    """Each cell once, in the order of first arrivals, with the last value."""
    cells: dict[tuple[str, str], Cell] = {}
    for line in lines:
        cells[line[0], line[1]] = Cell._make(line)  # a later value keeps the place of the first
    return list(cells.values())


def _plain(connection: Connection, query: Any) -> list[tuple[Any, ...]]:
    """The lines of an answer as plain tuples: of a million, SQLAlchemy's own rows would take seconds."""
    found = connection.execute(query)
    return list(found.cursor.fetchall()) if found.cursor is not None else []


def read_cells(connection: Connection) -> list[Cell]:
    """Return all observations that arrived, each cell once."""
    return read_latest(_plain(connection, select(*_CELL).order_by(OBSERVATIONS.c.id)))


def added_features(connection: Connection, number: int | None = None) -> dict[str, dict[str, Any]]:
    """The features that were added, after the change of this number if it is given: metadata and kind."""
    query = select(FEATURES.c.name, FEATURES.c.kind, FEATURES.c.metadata).order_by(FEATURES.c.number)
    if number is not None:
        query = query.where(FEATURES.c.number > number)
    return {
        name: {"metadata": json.loads(metadata) or None, "kind": kind}
        for name, kind, metadata in connection.execute(query)
    }


def _rows(connection: Connection, number: int | None) -> dict[str, dict[str, Any] | None]:
    query = select(ROWS.c.name, ROWS.c.metadata).order_by(ROWS.c.number)
    if number is not None:
        query = query.where(ROWS.c.number > number)
    return {
        name: None if metadata is None else json.loads(metadata)
        for name, metadata in connection.execute(query)
    }


KEYS_ARE_KEPT = timedelta(days=2)


def now() -> datetime:
    """The time of a change."""
    return datetime.now(UTC)


def insert_feature(
    connection: Connection, name: str, metadata: Mapping[str, Any], kind: str | None, cells: Sequence[Cell]
) -> int:
    """Record a new feature with its first observations; return the number of the change."""
    number = _change(connection, "feature", name, len(cells), Arrived())
    line = {"name": name, "number": number, "at": now(), "kind": kind, "metadata": json.dumps(metadata)}
    connection.execute(insert(FEATURES), line)
    _insert_cells(connection, number, cells)
    return number


def insert_row(
    connection: Connection, name: str, metadata: Mapping[str, Any] | None, cells: Sequence[Cell]
) -> int:
    """Record a new row with its first observations."""
    number = _change(connection, "row", name, len(cells), Arrived())
    text = None if metadata is None else json.dumps(metadata)
    connection.execute(insert(ROWS), {"name": name, "number": number, "at": now(), "metadata": text})
    _insert_cells(connection, number, cells)
    return number


def insert_observations(connection: Connection, cells: Sequence[Cell], arrived: Arrived) -> int:
    """Record observations, and how well they were foreseen."""
    number = _change(connection, "observe", None, len(cells), arrived)
    _insert_cells(connection, number, cells)
    return number


def remove_feature(connection: Connection, name: str) -> int:
    """Record that a feature is removed; what it observed is deleted."""
    number = _change(connection, "unfeature", name, 0, Arrived())
    connection.execute(delete(FEATURES).where(FEATURES.c.name == name))
    connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.feature == name))
    connection.execute(delete(REMOVED_FEATURES).where(REMOVED_FEATURES.c.name == name))
    connection.execute(insert(REMOVED_FEATURES), {"name": name, "number": number})
    return number


def forget_row(connection: Connection, name: str) -> int:
    """Delete all that is known of a row, its name included; what stays is a digest of the name."""
    trace = digest_of(connection, name)
    number = _change(connection, "forget", trace, 0, Arrived())
    connection.execute(delete(ROWS).where(ROWS.c.name == name))
    connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.row == name))
    own = (CHANGES.c.kind == "row") & (CHANGES.c.name == name)
    connection.execute(update(CHANGES).where(own).values(name=trace))
    connection.execute(delete(FORGOTTEN_ROWS).where(FORGOTTEN_ROWS.c.digest == trace))
    connection.execute(insert(FORGOTTEN_ROWS), {"digest": trace, "number": number})
    return number


def find_request(connection: Connection, key: str) -> tuple[str, dict[str, Any]] | None:
    """The digest of the body that came with an idempotency key, and the answer that it got."""
    query = select(REQUESTS.c.digest, REQUESTS.c.answer).where(REQUESTS.c.key == key)
    found = connection.execute(query).one_or_none()
    return None if found is None else (found.digest, json.loads(found.answer))


def record_request(connection: Connection, key: str, digest: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer that an idempotency key got; keys of long ago are dropped."""
    connection.execute(delete(REQUESTS).where(REQUESTS.c.at < now() - KEYS_ARE_KEPT))
    line = {"key": key, "digest": digest, "answer": json.dumps(answer), "at": now()}
    connection.execute(insert(REQUESTS), line)


def _change(connection: Connection, kind: str, name: str | None, count: int, arrived: Arrived) -> int:
    line = {
        "at": now(),
        "kind": kind,
        "name": name,
        "observations": count,
        "excess": arrived.excess if arrived.observations else None,
        "squares": arrived.squares if arrived.observations else None,
    }
    found = connection.execute(insert(CHANGES).returning(CHANGES.c.number), line)
    return int(found.scalar_one())


def _insert_cells(connection: Connection, number: int, cells: Sequence[Cell]) -> None:
    lines = [
        {"number": number, "row": cell.row, "feature": cell.feature, "value": cell.value, "time": cell.time}
        for cell in cells
    ]
    if lines:
        connection.execute(insert(OBSERVATIONS), lines)


class Store(Closing):
    """Everything that arrived online, in SQLite or PostgreSQL.

    Parameters
    ----------
    url : str
        ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``. Its schema is made or brought up to date.

    Raises
    ------
    InputError
        If the URL cannot be used.
    UnavailableError
        If the database cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = open_engine(url)
        with self.writing() as connection:
            migrate(connection)
            if connection.execute(select(FACTS.c.key).where(FACTS.c.key == "salt")).first() is None:
                connection.execute(insert(FACTS), {"key": "salt", "value": secrets.token_hex(16)})

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def writing(self) -> AbstractContextManager[Connection]:
        """A transaction that is committed at its end; other writers wait for it."""
        return writing(self._engine)

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction that sees one moment of the store."""
        return reading(self._engine)

    def last_number(self) -> int:
        """The number of the last change."""
        with self.reading() as connection:
            return read_last_number(connection)

    def feature(self, name: str) -> Stored | None:
        """A feature that was added, as it was given."""
        with self.reading() as connection:
            found = connection.execute(select(FEATURES).where(FEATURES.c.name == name)).one_or_none()
        return None if found is None else Stored(name, found.at, json.loads(found.metadata), found.kind)

    def row(self, name: str) -> Stored | None:
        """A row that was added, as it was given."""
        with self.reading() as connection:
            found = connection.execute(select(ROWS).where(ROWS.c.name == name)).one_or_none()
        return None if found is None else Stored(name, found.at, json.loads(found.metadata or "{}"))

    def times(self, features: list[str]) -> dict[str, datetime]:
        """When those of these features came that were added."""
        query = select(FEATURES.c.name, FEATURES.c.at).where(FEATURES.c.name.in_(features))
        with self.reading() as connection:
            return {line.name: line.at for line in connection.execute(query)}

    def observations_of(self, feature: str) -> list[tuple[Cell, datetime]]:
        """What arrived of a feature, in order, with corrections; and when."""
        line = OBSERVATIONS.c
        query = (
            select(line.row, line.feature, line.value, CHANGES.c.at)
            .join(CHANGES, CHANGES.c.number == line.number)
            .where(line.feature == feature)
            .order_by(line.id)
        )
        with self.reading() as connection:
            return [(Cell(*each[:3]), each[3]) for each in connection.execute(query)]

    def surprises(self, buckets: int) -> list[dict[str, Any]]:
        """How well was foreseen what arrived, over time, in parts of equally many changes."""
        surprising = CHANGES.c.excess.is_not(None)
        with self.reading() as connection:
            total = int(connection.execute(select(func.count()).where(surprising)).scalar_one())
            part = func.ntile(max(1, min(buckets, total))).over(order_by=CHANGES.c.number)
            lines = select(CHANGES, part.label("part")).where(surprising).subquery()
            query = (
                select(
                    func.min(lines.c.at),
                    func.max(lines.c.at),
                    func.sum(lines.c.observations),
                    func.sum(lines.c.excess),
                    func.sum(lines.c.squares),
                )
                .group_by(lines.c.part)
                .order_by(lines.c.part)
            )
            found = connection.execute(query).all() if total else []
        names = ("first", "last", "observations", "excess", "squares")
        return [dict(zip(names, each, strict=True)) for each in found]

    def clean(self) -> None:
        """Leave nothing of deleted lines in the files of SQLite; elsewhere the database does so."""
        if self._engine.dialect.name != "sqlite":
            return
        with suppress(UnavailableError), self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def fact(self, key: str) -> str | None:
        """A single value."""
        with self.reading() as connection:
            return connection.execute(select(FACTS.c.value).where(FACTS.c.key == key)).scalar()

    def set_fact(self, key: str, value: str) -> None:
        """Keep a single value."""
        with self.writing() as connection:
            connection.execute(delete(FACTS).where(FACTS.c.key == key))
            connection.execute(insert(FACTS), {"key": key, "value": value})

    def ping(self) -> None:
        """Raise ``UnavailableError`` if the database does not answer."""
        with self.reading() as connection:
            connection.execute(text("SELECT 1"))

    def tokens(self) -> list[Token]:
        """All tokens, the revoked ones too."""
        with self.reading() as connection:
            lines = connection.execute(select(TOKENS).order_by(TOKENS.c.at)).all()
        return [
            Token(each.id, each.name, each.digest, frozenset(each.scopes.split()), each.at, each.revoked)
            for each in lines
        ]

    def add_token(self, token: Token) -> None:
        """Keep a new token."""
        line = {**vars(token), "scopes": " ".join(sorted(token.scopes))}
        with self.writing() as connection:
            connection.execute(insert(TOKENS), line)

    def revoke_token(self, id: str) -> None:
        """Let a token be refused from now on."""
        query = update(TOKENS).where(TOKENS.c.id == id, TOKENS.c.revoked.is_(None)).values(revoked=now())
        with self.writing() as connection:
            if not connection.execute(query).rowcount:
                raise InputError(f"there is no token {id!r} that could be revoked")
