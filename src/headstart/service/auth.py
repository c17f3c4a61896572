"""Authorise requests: tokens, scopes, rates, sizes, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.errors import InputError, did_you_mean
from headstart.service.errors import Problem, of_error
from headstart.service.store import Store, Token, now

if TYPE_CHECKING:
    from headstart.service.worker import Service


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


class TokenSet:
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


# Questions that are asked by POST because they can be long.
ASKING = frozenset(
    f"/v1/{verb}" for verb in ("predict", "recommend", "audience", "suggest", "similar", "explain")
)

ADMIN = ("/v1/model", "/v1/tokens")

OPEN = frozenset({"/health", "/ready"})

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

_ENCODED = [(key.encode(), value.encode()) for key, value in HEADERS.items()]


def scope_of(method: str, path: str) -> str | None:
    """The scope that a request needs; None if anyone may ask."""
    if path.startswith(ADMIN) and method != "GET":
        return "admin"
    if path.startswith("/v1/tokens"):
        return "admin"
    if path.startswith("/v1/"):
        return "read" if method in ("GET", "HEAD", "OPTIONS") or path in ASKING else "write"
    return "read" if path == "/metrics" else None


class Guard:
    """The outermost layer of the application.

    It refuses what may not be done before anything of the body is read, counts every answer, and gives
    each its headers. It is plain ASGI, because every request passes through it.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._buckets: dict[str, tuple[float, float]] = {}  # by token: tokens left, when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_ENCODED]
                # Files of the page are asked for again by their tags: parts of two versions never mix.
                caching = "no-store" if scope["path"].startswith("/v1/") else "no-cache"
                MutableHeaders(scope=message).setdefault("cache-control", caching)
            await send(message)

        limit = self._service.settings.max_body
        taken = 0

        async def receiving() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                # The framework takes any other error for a body that cannot be read.
                raise HTTPException(413, f"the body is larger than {limit:,} bytes; send it in parts")
            return message

        try:
            self._admit(scope)
            await self._app(scope, receiving, sending)
        except Exception as error:
            await of_error(error)(scope, receive, sending)
        route = scope.get("route")
        name = getattr(route, "path", None) or ("page" if status < 400 else "other")
        self._service.metrics.answered(name, status, time.perf_counter() - start)

    def _admit(self, scope: Scope) -> None:
        """Refuse a request that may not be made."""
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        self._check_body(method, path, headers)
        if path in OPEN:
            return
        needed = scope_of(method, path)
        if needed is None:
            return
        keys, settings = self._service.keys, self._service.settings
        if keys is None:
            raise Problem(503, "the store has not been reached yet", headers={"retry-after": "1"})
        if settings.loopback and not keys:
            host = headers.get("host", "")
            host = host if host.endswith("]") else host.rsplit(":", 1)[0]  # without the port
            if host not in settings.hosts:  # a page of another site whose name points here
                raise Problem(403, f"without tokens only local names are answered; got {host!r}")
            return
        token = self._token(headers)
        if not allows(token, needed):
            raise Problem(403, f"this token does not have the scope {needed!r}")
        self._spend(token)

    def _check_body(self, method: str, path: str, headers: Headers) -> None:
        length, limit = headers.get("content-length", "0"), self._service.settings.max_body
        if not length.isdecimal() or int(length) > limit:
            raise Problem(413, f"the body is larger than {limit:,} bytes; send it in parts")
        if method not in ("POST", "PUT", "PATCH") or not path.startswith("/v1/"):
            return
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # also what keeps pages of other sites from posting here
            raise Problem(415, f"the body must be application/json; got {kind or 'no content type'}")

    def _token(self, headers: Headers) -> Token:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        keys = self._service.keys
        token = keys.find(given.strip()) if keys is not None and scheme.lower() == "bearer" else None
        if token is None:
            what = "this token is not valid" if given else "a token is needed"
            raise Problem(
                401, f"{what}; send it as Authorization: Bearer TOKEN", headers={"www-authenticate": "Bearer"}
            )
        return token

    def _spend(self, token: Token) -> None:
        """Count a request against the rate of its token: a bucket that fills steadily."""
        settings, now = self._service.settings, time.monotonic()
        left, when = self._buckets.get(token.id, (settings.burst, now))
        left = min(settings.burst, left + (now - when) * settings.rate)
        if left < 1:
            self._buckets[token.id] = (left, now)
            wait = str(max(1, round((1 - left) / settings.rate)))
            raise Problem(
                429, "too many requests with this token; wait a little", headers={"retry-after": wait}
            )
        self._buckets[token.id] = (left - 1, now)
