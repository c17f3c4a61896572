"""API tokens: ``hs_ID_SECRET``; only a digest of the secret is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from headstart.errors import InputError, did_you_mean
from headstart.service.store import Store
from headstart.service.store.records import Token
from headstart.service.store.writing import now

SCOPES = ("read", "write", "admin")  # each contains those before it
_FORM = re.compile(r"hs_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


def create_token(store: Store, name: str, scopes: Iterable[str] = ("read",)) -> str:
    """Make a token and return it; it cannot be shown again.

    Parameters
    ----------
    store : Store
        Where it is kept.
    name : str
        Whose it is, for a person.
    scopes : iterable of str
        What it allows: read, write, admin. A scope contains those before it.
    """
    wanted = frozenset(scopes)
    for scope in wanted:
        if scope not in SCOPES:
            raise InputError(f"{scope!r} is not a scope ({', '.join(SCOPES)}){did_you_mean(scope, SCOPES)}")
    if not wanted or not name.strip() or len(name) > 200:
        raise InputError("a token needs a name of at most 200 characters and a scope")
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    store.add_token(Token(identity, name.strip(), _digest(secret), wanted, now()))
    return f"hs_{identity}_{secret}"


class Keyring:
    """The tokens of a store as they were last looked at."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = {token.id: token for token in tokens if token.revoked is None}

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, given: str) -> Token | None:
        """The token of this text, if it is valid."""
        form = _FORM.fullmatch(given)
        found = self._tokens.get(form[1]) if form else None
        # An unknown token is compared too, so that the time does not tell whether it exists.
        right = hmac.compare_digest(_digest(form[2] if form else ""), found.digest if found else bytes(32))
        return found if right else None


def allows(token: Token, scope: str) -> bool:
    """Whether a token allows what needs this scope."""
    return any(SCOPES.index(own) >= SCOPES.index(scope) for own in token.scopes)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
