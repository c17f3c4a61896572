"""Store: the durable side of a service."""

from __future__ import annotations

import json
import secrets
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, text, update

from headstart.closing import Closing
from headstart.errors import InputError
from headstart.service.live.delta import Cell
from headstart.service.store import reading as read
from headstart.service.store.connecting import UnavailableError, open_engine, reading, writing
from headstart.service.store.migrations import migrate
from headstart.service.store.records import Stored, Token
from headstart.service.store.schema import CHANGES, FACTS, FEATURES, OBSERVATIONS, ROWS, TOKENS
from headstart.service.store.writing import now


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
            return read.last_number(connection)

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
