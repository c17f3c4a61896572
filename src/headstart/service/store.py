"""Store the changes made through a service, and its tokens, in SQLite or PostgreSQL.

From top to bottom: the ``Store`` with its transactions and single lookups; functions that record and read
changes inside a transaction. What every observation needs is a ``Statement``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, Self

from sqlalchemy import (
    BindParameter,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from headstart.errors import InputError
from headstart.model.staleness import NO_ERRORS, ErrorSums
from headstart.service.database import Statement, UnavailableError, available, open_engine, reading, writing
from headstart.service.tables import (
    CHANGES,
    FACTS,
    FEATURES,
    OBSERVATIONS,
    REMOVED_FEATURES,
    REMOVED_ROWS,
    REQUESTS,
    ROW_IDS,
    ROWS,
    TOKENS,
    migrate,
)

_KEEP_REQUESTS = timedelta(days=2)  # after which an idempotency key may be used again

_CLEAN_FACT = "clean"  # the number of the last removal of a row that the write-ahead log may still contain

_CLEAN_WAIT_MS = 100  # for locks, while writers wait

_MAX_PARAMETERS = 8192  # of one query; a power of two


class Cell(NamedTuple):
    """One observation, by names."""

    row: str
    feature: str
    value: float
    time: float | None = None  # only for a model whose observations age
    weight: float | None = None  # None: 1


class ErrorBucket(NamedTuple):
    """The prediction errors of a period, each of an observation before it was added."""

    first: datetime  # the time of its first change
    last: datetime
    errors: ErrorSums


@dataclass(frozen=True)
class Delta:
    """Changes, applied in this order: removals, additions, observations.

    Attributes
    ----------
    removed_features, removed_rows : list of str
        Features and rows to remove; unknown names are ignored.
    features : dict
        ``{name: {"metadata": …, "kind": …}}`` of new features.
    rows : dict
        ``{name: metadata}`` of new rows; the metadata may be None.
    cells : list of Cell
        Observations in the order of their first arrival, each cell once, with its latest value.
    """

    removed_features: Sequence[str] = ()
    removed_rows: Sequence[str] = ()
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    cells: Sequence[Cell] = ()

    def __bool__(self) -> bool:
        return bool(self.removed_features or self.removed_rows or self.features or self.rows or self.cells)


@dataclass(frozen=True)
class AddedEntry:
    """A feature or row that was added: its metadata and kind as in the request, and the time."""

    name: str
    at: datetime
    metadata: dict[str, Any]
    kind: str | None = None


@dataclass(frozen=True)
class Token:
    """An API token without its secret."""

    id: str
    name: str
    digest: bytes
    scopes: frozenset[str]
    at: datetime
    revoked: datetime | None = None


class Store:
    """The changes made through a service, and its tokens, in SQLite or PostgreSQL.

    Parameters
    ----------
    url : str
        ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``. The schema is created or migrated.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def writing(self) -> AbstractContextManager[Connection]:
        """Open a transaction that is committed at its end; other writers wait for it."""
        return writing(self._engine)

    def reading(self) -> AbstractContextManager[Connection]:
        """Open a transaction that reads a consistent state of the store."""
        return reading(self._engine)

    def last_number(self) -> int:
        """Return the number of the last change."""
        with self.reading() as connection:
            return read_last_number(connection)

    def feature(self, name: str) -> AddedEntry | None:
        """Return a feature that was added through the service; None for any other."""
        with self.reading() as connection:
            line = connection.execute(select(FEATURES).where(FEATURES.c.name == name)).one_or_none()
        return None if line is None else AddedEntry(name, line.at, json.loads(line.metadata), line.kind)

    def row(self, name: str) -> AddedEntry | None:
        """Return a row that was added through the service; None for any other."""
        with self.reading() as connection:
            id = _find_row_ids(connection, {name: digest_of(connection, name)}).get(name)
            query = select(ROWS.c.at, ROWS.c.metadata).where(ROWS.c.id == id, ROWS.c.number.is_not(None))
            line = connection.execute(query).one_or_none()
        return None if line is None else AddedEntry(name, line.at, json.loads(line.metadata or "{}"))

    def times(self, features: list[str]) -> dict[str, datetime]:
        """Return the times at which ``features`` were added, without features of the fit."""
        query = select(FEATURES.c.name, FEATURES.c.at).where(FEATURES.c.name.in_(features))
        with self.reading() as connection:
            return {line.name: line.at for line in connection.execute(query)}

    def observations_of(self, feature: str) -> list[tuple[Cell, datetime]]:
        """Return the stored observations of a feature in order, corrections included, with their times."""
        columns = OBSERVATIONS.c
        query = (
            select(ROWS.c.name, columns.feature, columns.value, CHANGES.c.at)
            .join(ROWS, ROWS.c.id == columns.row)
            .join(CHANGES, CHANGES.c.number == columns.number)
            .where(columns.feature == feature)
            .order_by(columns.id)
        )
        with self.reading() as connection:
            return [(Cell(*line[:3]), line[3]) for line in connection.execute(query)]

    def error_sums(self, buckets: int) -> list[ErrorBucket]:
        """Return the sums of prediction errors of ``buckets`` periods with equal numbers of changes."""
        scored = CHANGES.c.excess.is_not(None)
        with self.reading() as connection:
            total = int(connection.execute(select(func.count()).where(scored)).scalar_one())
            part = func.ntile(max(1, min(buckets, total))).over(order_by=CHANGES.c.number)
            lines = select(CHANGES, part.label("part")).where(scored).subquery()
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
            parts = connection.execute(query).all() if total else []
        return [
            ErrorBucket(first, last, ErrorSums(int(observations), excess, squares))
            for first, last, observations, excess, squares in parts
        ]

    def clean(self) -> None:
        """Erase removed rows from the files of SQLite, if there are any that it has not erased yet.

        ``remove_row`` overwrites names where they are, and a checkpoint empties the write-ahead log, which
        has earlier versions of pages. PostgreSQL does both by its own vacuum.

        Raises
        ------
        UnavailableError
            If another process reads or writes, or the disk is full. A later call erases them.
        """
        if self._engine.dialect.name != "sqlite":
            return
        due = self.fact(_CLEAN_FACT)
        if due is None:
            return
        with available():
            connection = self._engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {_CLEAN_WAIT_MS}")
            (busy, *_) = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"removed rows are not erased yet: {error}") from error
        finally:
            connection.invalidate()  # it has another time limit than the other connections
        if busy:
            raise UnavailableError("removed rows are not erased yet: another process reads the store")
        with self.writing() as transaction:  # a row that was removed meanwhile has a later number
            transaction.execute(delete(FACTS).where(FACTS.c.key == _CLEAN_FACT, FACTS.c.value == due))

    def fact(self, key: str) -> str | None:
        """Return a single value; None if it is not set."""
        with self.reading() as connection:
            return connection.execute(select(FACTS.c.value).where(FACTS.c.key == key)).scalar()

    def set_fact(self, key: str, value: str) -> None:
        """Set a single value."""
        with self.writing() as connection:
            _write_fact(connection, key, value)

    def ping(self) -> None:
        """Raise ``UnavailableError`` if the database does not answer."""
        with self.reading() as connection:
            connection.execute(text("SELECT 1"))

    def tokens(self) -> list[Token]:
        """Return all tokens, including revoked ones."""
        with self.reading() as connection:
            lines = connection.execute(select(TOKENS).order_by(TOKENS.c.at)).all()
        return [
            Token(line.id, line.name, line.digest, frozenset(line.scopes.split()), line.at, line.revoked)
            for line in lines
        ]

    def add_token(self, token: Token) -> None:
        """Store a new token."""
        line = {**vars(token), "scopes": " ".join(sorted(token.scopes))}
        with self.writing() as connection:
            connection.execute(insert(TOKENS), line)

    def revoke_token(self, id: str) -> None:
        """Revoke a token."""
        query = update(TOKENS).where(TOKENS.c.id == id, TOKENS.c.revoked.is_(None)).values(revoked=now())
        with self.writing() as connection:
            if not connection.execute(query).rowcount:
                raise InputError(f"there is no token {id!r} that could be revoked")


# -- record changes -----------------------------------------------------------------------------------


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def insert_feature(
    connection: Connection, name: str, metadata: Mapping[str, Any], kind: str | None, cells: Sequence[Cell]
) -> int:
    """Record a new feature with its first observations; return the number of the change."""
    number = _insert_change(connection, "add_feature", name, len(cells))
    line = {"name": name, "number": number, "at": now(), "kind": kind, "metadata": json.dumps(metadata)}
    connection.execute(insert(FEATURES), line)
    _insert_cells(connection, [(number, cell) for cell in cells])
    return number


def insert_row(
    connection: Connection, name: str, metadata: Mapping[str, Any] | None, cells: Sequence[Cell]
) -> int:
    """Record a new row with its first observations; return the number of the change."""
    name_digest = digest_of(connection, name)
    number = _insert_change(connection, "add_row", name_digest, len(cells))
    text = None if metadata is None else json.dumps(metadata)
    insert_rows(connection, {name_digest: {"name": name, "number": number, "at": now(), "metadata": text}})
    _insert_cells(connection, [(number, cell) for cell in cells])
    return number


def insert_observations(
    connection: Connection, changes: Sequence[tuple[Sequence[Cell], ErrorSums]]
) -> list[int]:
    """Record changes of observations with the errors of their predictions; return their numbers."""
    numbers = _insert_changes(
        connection, [_change_line("observe", None, len(cells), arrived) for cells, arrived in changes]
    )
    numbered = zip(numbers, (cells for cells, _ in changes), strict=True)
    _insert_cells(connection, [(number, cell) for number, cells in numbered for cell in cells])
    return numbers


def remove_feature(connection: Connection, name: str) -> int:
    """Record the removal of a feature and delete its observations; return the number of the change."""
    number = _insert_change(connection, "remove_feature", name, 0)
    connection.execute(delete(FEATURES).where(FEATURES.c.name == name))
    connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.feature == name))
    connection.execute(delete(REMOVED_FEATURES).where(REMOVED_FEATURES.c.name == name))
    connection.execute(insert(REMOVED_FEATURES), {"name": name, "number": number})
    return number


def remove_row(connection: Connection, name: str) -> int:
    """Delete a row with its observations and its name; return the number of the change.

    Only a digest of the name stays, so that the row is also removed from models that were fitted with it.
    Name and metadata are overwritten by as many bytes, which SQLite does in place: a deleted line would make
    it move other lines between pages, and leave copies of their names there.
    """
    name_digest = digest_of(connection, name)
    number = _insert_change(connection, "remove_row", name_digest, 0)
    query = select(ROWS).join(ROW_IDS, ROW_IDS.c.id == ROWS.c.id).where(ROW_IDS.c.digest == name_digest)
    for line in connection.execute(query).all():
        connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.row == line.id))
        connection.execute(delete(ROW_IDS).where(ROW_IDS.c.id == line.id))
        erased = {"name": _erased(line.name), "metadata": _erased(line.metadata)}
        connection.execute(update(ROWS).where(ROWS.c.id == line.id).values(erased))
    connection.execute(delete(REMOVED_ROWS).where(REMOVED_ROWS.c.digest == name_digest))
    connection.execute(insert(REMOVED_ROWS), {"digest": name_digest, "number": number})
    _write_fact(connection, _CLEAN_FACT, str(number))
    return number


def _erased(text: str | None) -> str | None:
    """Return another text of as many bytes."""
    return None if text is None else "x" * len(text.encode())


def _write_fact(connection: Connection, key: str, value: str) -> None:
    connection.execute(delete(FACTS).where(FACTS.c.key == key))
    connection.execute(insert(FACTS), {"key": key, "value": value})


_FIND_REQUEST = Statement(
    select(REQUESTS.c.digest, REQUESTS.c.answer).where(REQUESTS.c.key == bindparam("key"))
)

_DELETE_REQUESTS = Statement(
    delete(REQUESTS).where(REQUESTS.c.at < bindparam("before", type_=REQUESTS.c.at.type))
)

_INSERT_REQUEST = Statement(insert(REQUESTS), ["key", "digest", "answer", "at"])


def find_request(connection: Connection, key: str) -> tuple[str, dict[str, Any]] | None:
    """Return the digest of the body of an earlier request with this idempotency key, and its answer.

    ``key`` includes the method and the path of the request.
    """
    lines = _FIND_REQUEST.fetch(connection, key=request_digest(connection, key.encode()))
    return (lines[0][0], json.loads(lines[0][1])) if lines else None


def record_requests(connection: Connection, requests: Sequence[tuple[str, bytes, Mapping[str, Any]]]) -> None:
    """Record the answers to requests, given as idempotency key, body and answer; delete old ones."""
    if not requests:
        return
    at = now()
    _DELETE_REQUESTS.run(connection, [{"before": at - _KEEP_REQUESTS}])
    lines = [
        {
            "key": request_digest(connection, key.encode()),
            "digest": request_digest(connection, body),
            "answer": json.dumps(answer),
            "at": at,
        }
        for key, body, answer in requests
    ]
    _INSERT_REQUEST.run(connection, lines)


def request_digest(connection: Connection, content: bytes) -> str:
    """Return the keyed digest of a key or body, which may contain the name of a row."""
    return hmac.new(salt_of(connection).encode(), content, hashlib.sha256).hexdigest()


_LAST_NUMBER = Statement(select(func.max(CHANGES.c.number)))

_LAST_ROW = Statement(select(func.max(ROWS.c.id)))

_LATER_NUMBERS = Statement(
    select(CHANGES.c.number).where(CHANGES.c.number > bindparam("last")).order_by(CHANGES.c.number)
)

_LATER_ROWS = Statement(select(ROWS.c.id).where(ROWS.c.id > bindparam("last")).order_by(ROWS.c.id))

_INSERT_CHANGE = Statement(insert(CHANGES), ["at", "kind", "name", "observations", "excess", "squares"])

_INSERT_ROW = Statement(insert(ROWS), ["name", "number", "at", "metadata"])

_INSERT_ROW_ID = Statement(insert(ROW_IDS), ["digest", "id"])

_INSERT_OBSERVATION = Statement(insert(OBSERVATIONS), ["number", "row", "feature", "value", "time", "weight"])


def _insert_change(connection: Connection, kind: str, name: str | None, count: int) -> int:
    return _insert_changes(connection, [_change_line(kind, name, count, NO_ERRORS)])[0]


def _insert_changes(connection: Connection, lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Insert the lines of changes; return their numbers."""
    last = read_last_number(connection)
    _INSERT_CHANGE.run(connection, lines)
    # Numbers grow, and only one transaction writes at a time: all later ones are those of these lines.
    return [number for (number,) in _LATER_NUMBERS.fetch(connection, last=last)]


def _change_line(kind: str, name: str | None, count: int, arrived: ErrorSums) -> dict[str, Any]:
    return {
        "at": now(),
        "kind": kind,
        "name": name,
        "observations": count,
        "excess": arrived.excess if arrived.observations else None,
        "squares": arrived.squares if arrived.observations else None,
    }


def _insert_cells(connection: Connection, numbered: Sequence[tuple[int, Cell]]) -> None:
    """Insert cells, each with the number of its change."""
    if not numbered:
        return
    salt = salt_of(connection)
    digests = {name: digest(salt, name) for name in dict.fromkeys(cell.row for _, cell in numbered)}
    ids = _find_row_ids(connection, digests)
    missing = {digests[name]: {"name": name} for name in digests if name not in ids}
    if missing:  # rows of the fit, observed for the first time
        ids |= insert_rows(connection, missing)
    lines = [{**cell._asdict(), "number": number, "row": ids[cell.row]} for number, cell in numbered]
    _INSERT_OBSERVATION.run(connection, lines)


def _find_row_ids(connection: Connection, digests: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of the rows that the store has; ``digests`` maps names to their digests."""
    found: dict[str, int] = {}
    values = list(digests.values())
    for start in range(0, len(values), _MAX_PARAMETERS):
        part = values[start : start + _MAX_PARAMETERS]
        size = 1 << (len(part) - 1).bit_length()  # few sizes, so that few statements are compiled
        part += part[:1] * (size - len(part))
        parameters = {f"digest_{i}": value for i, value in enumerate(part)}
        found |= dict(_select_row_ids(size).fetch(connection, **parameters))
    return {name: found[value] for name, value in digests.items() if value in found}


@cache
def _select_row_ids(count: int) -> Statement:
    """Return the query of the digests and ids of rows with ``count`` digests."""
    digests: list[BindParameter[str]] = [bindparam(f"digest_{i}") for i in range(count)]
    return Statement(select(ROW_IDS.c.digest, ROW_IDS.c.id).where(ROW_IDS.c.digest.in_(digests)))


def insert_rows(connection: Connection, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Insert the lines of rows, given by the digests of their names; return their ids by name."""
    last = _LAST_ROW.fetch(connection)[0][0] or 0
    columns = ("name", "number", "at", "metadata")
    _INSERT_ROW.run(connection, ({column: row.get(column) for column in columns} for row in rows.values()))
    ids = [id for (id,) in _LATER_ROWS.fetch(connection, last=last)]  # see ``_insert_changes``
    _INSERT_ROW_ID.run(
        connection, ({"digest": digest, "id": id} for digest, id in zip(rows, ids, strict=True))
    )
    return {row["name"]: id for row, id in zip(rows.values(), ids, strict=True)}


# -- read changes -------------------------------------------------------------------------------------


def read_all(connection: Connection, rows: Sequence[str]) -> Delta:
    """Read all changes in the store, for a model with these rows."""
    removed_features = [line.name for line in connection.execute(select(REMOVED_FEATURES.c.name))]
    removed_digests = {line.digest for line in connection.execute(select(REMOVED_ROWS.c.digest))}
    return Delta(
        removed_features=removed_features,
        removed_rows=_find_removed(connection, rows, removed_digests),
        features=added_features(connection),
        rows=_added_rows(connection, None),
        cells=read_cells(connection),
    )


def read_since(connection: Connection, number: int, rows: Sequence[str]) -> Delta:
    """Read the changes after change ``number``, for a model with these rows."""
    later = CHANGES.c.number > number
    lines = connection.execute(select(CHANGES.c.kind, CHANGES.c.name).where(later).order_by(CHANGES.c.number))
    removed_features: dict[str, None] = {}  # ordered, each once
    removed_digests: set[str] = set()
    for kind, name in lines:
        if kind == "remove_feature":
            removed_features[name] = None
        elif kind == "remove_row":
            removed_digests.add(name)
    return Delta(
        removed_features=list(removed_features),
        removed_rows=_find_removed(connection, rows, removed_digests),
        features=added_features(connection, number),
        rows=_added_rows(connection, number),
        cells=read_latest(connection.execute(select_cells().where(OBSERVATIONS.c.number > number))),
    )


def read_last_number(connection: Connection) -> int:
    """Return the number of the last change; 0 if the store is empty."""
    return int(_LAST_NUMBER.fetch(connection)[0][0] or 0)


def _find_removed(connection: Connection, rows: Sequence[str], digests: set[str]) -> list[str]:
    """Return the rows whose names have one of these digests."""
    if not digests:
        return []
    salt = salt_of(connection)
    return [row for row in rows if digest(salt, row) in digests]


def digest_of(connection: Connection, row: str) -> str:
    """Return the digest that a store keeps of the name of a removed row."""
    return digest(salt_of(connection), row)


def salt_of(connection: Connection) -> str:
    """Return the store's salt of digests, which never changes; each connection reads it once."""
    if "salt" not in connection.info:
        query = select(FACTS.c.value).where(FACTS.c.key == "salt")
        connection.info["salt"] = str(connection.execute(query).scalar_one())
    return str(connection.info["salt"])


def digest(salt: str, row: str) -> str:
    """Return the salted digest of a row's name."""
    return hashlib.sha256(f"{salt}\0{row}".encode()).hexdigest()


def select_cells() -> Select[Any]:
    """Return the query of all observations, in the order of arrival; its columns are those of ``Cell``."""
    columns = [OBSERVATIONS.c[name] for name in Cell._fields if name != "row"]
    query = select(ROWS.c.name.label("row"), *columns).join(ROWS, ROWS.c.id == OBSERVATIONS.c.row)
    return query.order_by(OBSERVATIONS.c.id)


def read_latest(lines: Any) -> list[Cell]:
    """Return each cell once, in the order of first arrival, with the last value."""
    cells: dict[tuple[str, str], Cell] = {}
    for line in lines:
        cells[line[0], line[1]] = Cell._make(line)  # a dictionary keeps the position of the first value
    return list(cells.values())


def _fetch_tuples(connection: Connection, query: Any) -> list[tuple[Any, ...]]:
    """Return the lines of a query as plain tuples: a million of SQLAlchemy's row objects take seconds."""
    result = connection.execute(query)
    return list(result.cursor.fetchall()) if result.cursor is not None else []


def read_cells(connection: Connection) -> list[Cell]:
    """Return all stored observations, each cell once."""
    return read_latest(_fetch_tuples(connection, select_cells()))


def added_features(connection: Connection, number: int | None = None) -> dict[str, dict[str, Any]]:
    """Return metadata and kind of added features; only of those after change ``number`` if it is set."""
    query = select(FEATURES.c.name, FEATURES.c.kind, FEATURES.c.metadata).order_by(FEATURES.c.number)
    if number is not None:
        query = query.where(FEATURES.c.number > number)
    return {
        name: {"metadata": json.loads(metadata) or None, "kind": kind}
        for name, kind, metadata in connection.execute(query)
    }


def _added_rows(connection: Connection, number: int | None) -> dict[str, dict[str, Any] | None]:
    query = select(ROWS.c.name, ROWS.c.metadata).join(ROW_IDS, ROW_IDS.c.id == ROWS.c.id)
    query = query.where(ROWS.c.number > (number or 0)).order_by(ROWS.c.number)
    return {
        name: None if metadata is None else json.loads(metadata)
        for name, metadata in connection.execute(query)
    }
