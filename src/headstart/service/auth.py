"""Authorise requests by tokens and scopes, limit their rate and size, and set the headers of responses."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.errors import InputError, did_you_mean, service_request
from headstart.service.errors import Problem, error_response
from headstart.service.store import Store, Token, now

if TYPE_CHECKING:
    from headstart.service.worker import Service


SCOPES = ("read", "write", "admin")  # each scope includes the scopes before it

_DISCARD_SECONDS = 5.0

_TOKEN = re.compile(r"hs_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")

# Paths of queries that are sent by POST because they can be long.
QUERIES = frozenset(
    f"/v1/{verb}"
    for verb in ("predict", "sample", "impute", "recommend", "audience", "suggest", "similar", "explain")
)

ADMIN_PATHS = ("/v1/model", "/v1/tokens")

OPEN_PATHS = frozenset({"/health", "/ready"})

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

_ENCODED_HEADERS = [(key.encode(), value.encode()) for key, value in HEADERS.items()]


def create_token(store: Store, name: str, scopes: Iterable[str] = ("read",)) -> str:
    """Create a token and return it; only its digest is stored, so it cannot be shown again.

    Parameters
    ----------
    store : Store
        The store of the service.
    name : str
        A name of the token, for a person.
    scopes : iterable of str
        The scopes of the token: read, write, admin. A scope includes the scopes before it.
    """
    scope_set = frozenset(scopes)
    for scope in scope_set:
        if scope not in SCOPES:
            raise InputError(f"{scope!r} is not a scope ({', '.join(SCOPES)}){did_you_mean(scope, SCOPES)}")
    if not scope_set or not name.strip() or len(name) > 200:
        raise InputError("a token needs a name of at most 200 characters and a scope")
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    store.add_token(Token(identity, name.strip(), _digest(secret), scope_set, now()))
    return f"hs_{identity}_{secret}"


class TokenSet:
    """The tokens of a store.

    Parameters
    ----------
    tokens : iterable of Token
        All tokens that the store ever held, including revoked ones.

    Attributes
    ----------
    required : bool
        Whether requests need a token. Revoking the last token does not open a service again: only a store
        that never held a token is open.
    """

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        by_id = {token.id: token for token in tokens}
        self.required = bool(by_id)
        self._tokens = {id: token for id, token in by_id.items() if token.revoked is None}

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, text: str) -> Token | None:
        """Return the token with this text; None if there is none."""
        match = _TOKEN.fullmatch(text)
        token = self._tokens.get(match[1]) if match else None
        # An unknown token is compared too, so that the time does not reveal whether it exists.
        digest = _digest(match[2] if match else "")
        return token if hmac.compare_digest(digest, token.digest if token else bytes(32)) else None


def allows(token: Token, scope: str) -> bool:
    """Return whether a token has a scope or one that includes it."""
    return any(SCOPES.index(token_scope) >= SCOPES.index(scope) for token_scope in token.scopes)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def scope_of(method: str, path: str) -> str | None:
    """Return the scope that a request needs; None if it needs no token."""
    if path.startswith(ADMIN_PATHS) and method != "GET":
        return "admin"
    if path.startswith("/v1/tokens"):
        return "admin"
    if path.startswith("/v1/"):
        return "read" if method in ("GET", "HEAD", "OPTIONS") or path in QUERIES else "write"
    return "read" if path == "/metrics" else None


async def _discard(receive: Receive, limit: int) -> None:
    """Read and drop up to ``limit`` further bytes of a body that is too large.

    Most clients read the answer only after they have sent the body; closing the connection before would lose
    the answer.
    """
    left, more = limit, True
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while more and left > 0:
                message = await receive()
                left -= len(message.get("body", b"")) + 1
                more = message.get("more_body", False)


class Guard:
    """The outermost layer of the application, an ASGI middleware.

    It refuses unauthorised requests before the body is read, counts responses, and sets their headers. It is
    plain ASGI, which costs least, because every request passes through it.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._buckets: dict[str, tuple[float, float]] = {}  # by token: requests left, time of the last one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_ENCODED_HEADERS]
                # Browsers revalidate the files of the page, so that files of two versions never mix.
                caching = "no-store" if scope["path"].startswith("/v1/") else "no-cache"
                MutableHeaders(scope=message).setdefault("cache-control", caching)
            await send(message)

        limit = self._service.settings.max_body
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                if message.get("more_body", False):
                    await _discard(receive, limit)
                # FastAPI answers any other exception while it reads the body with 400.
                raise HTTPException(413, f"the body is larger than {limit:,} bytes; send it in parts")
            return message

        try:
            self._admit(scope)
            with service_request():
                await self._app(scope, receive_limited, send_with_headers)
        except Exception as error:
            if isinstance(error, Problem) and error.status == 413:
                await _discard(receive, limit)
            await error_response(error)(scope, receive, send_with_headers)
        route = scope.get("route")
        name = getattr(route, "path", None) or ("page" if status < 400 else "other")
        self._service.metrics.count_response(name, status, time.perf_counter() - start)

    def _admit(self, scope: Scope) -> None:
        """Raise a problem for a request that is too large, not authorised, or beyond its rate."""
        method, path, headers = scope["method"], scope["path"], Headers(scope=scope)
        self._check_body(method, path, headers)
        if path in OPEN_PATHS:
            return
        needed = scope_of(method, path)
        if needed is None:
            return
        tokens, settings = self._service.tokens, self._service.settings
        if tokens is None:
            raise Problem(503, "the store has not been reached yet", headers={"retry-after": "1"})
        if settings.loopback and not tokens.required:
            host = headers.get("host", "")
            host = host if host.endswith("]") else host.rsplit(":", 1)[0]  # without the port
            if host not in settings.hosts:  # DNS rebinding: the name of another site points to this machine
                raise Problem(403, f"without tokens only local names are answered; got {host!r}")
            return
        token = self._authenticate(headers, tokens)
        if not allows(token, needed):
            raise Problem(403, f"this token does not have the scope {needed!r}")
        self._spend(token)

    def _check_body(self, method: str, path: str, headers: Headers) -> None:
        length, limit = headers.get("content-length", "0"), self._service.settings.max_body
        if not length.isdecimal() or int(length) > limit:
            raise Problem(413, f"the body is larger than {limit:,} bytes; send it in parts")
        if method not in ("POST", "PUT", "PATCH") or not path.startswith("/v1/"):
            return
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":  # this also refuses forms of other sites
            raise Problem(415, f"the body must be application/json; got {media_type or 'no content type'}")

    @staticmethod
    def _authenticate(headers: Headers, tokens: TokenSet) -> Token:
        """Return the token of a request; raise a 401 problem if there is none or it is not valid."""
        scheme, _, text = headers.get("authorization", "").partition(" ")
        token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
        if token is None:
            problem = "this token is not valid" if text else "a token is needed"
            raise Problem(
                401,
                f"{problem}; send it as Authorization: Bearer TOKEN",
                headers={"www-authenticate": "Bearer"},
            )
        return token

    def _spend(self, token: Token) -> None:
        """Count a request against the rate of its token (token bucket)."""
        settings, now = self._service.settings, time.monotonic()
        left, last = self._buckets.get(token.id, (settings.burst, now))
        left = min(settings.burst, left + (now - last) * settings.rate)
        if left < 1:
            self._buckets[token.id] = (left, now)
            wait = str(max(1, round((1 - left) / settings.rate)))
            raise Problem(
                429, "too many requests with this token; wait a little", headers={"retry-after": wait}
            )
        self._buckets[token.id] = (left - 1, now)
