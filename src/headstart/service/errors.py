"""Respond to errors with ``application/problem+json`` (RFC 9457): a field and a message, no traceback."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headstart.errors import (
    BusyError,
    HeadstartError,
    InputError,
    ModelFileError,
    StorageError,
    UnknownNameError,
)

LOG = logging.getLogger("headstart.service")

MEDIA_TYPE = "application/problem+json"

_MAX_ERRORS = 20  # in one response

PROBLEM_SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The mistake and its remedy."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "field": {"type": "string", "description": "A JSON pointer into the body."},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}


# The response of every operation in the OpenAPI document.
PROBLEM_RESPONSE: dict[str, Any] = {
    "description": "A problem",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


class Problem(HeadstartError):
    """An error with its HTTP status.

    Parameters
    ----------
    status : int
        The status of the response.
    detail : str
        The message for a person: the mistake and its remedy.
    field : str, default=None
        A JSON pointer to the wrong field of the body, such as ``/observations/3/value``.
    headers : dict, default=None
        Further headers of the response.
    """

    def __init__(
        self, status: int, detail: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.field, self.headers = status, detail, field, headers

    def response(self) -> Response:
        """Return the response."""
        errors = [] if self.field is None else [{"field": self.field, "detail": self.detail}]
        return problem_response(self.status, self.detail, errors, self.headers)


def problem_response(
    status: int, detail: str, errors: Sequence[dict[str, Any]] = (), headers: dict[str, str] | None = None
) -> Response:
    """Return the response of a problem."""
    content: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if errors:
        content["errors"] = list(errors)
    return Response(to_json(content), status, {"cache-control": "no-store", **(headers or {})}, MEDIA_TYPE)


@contextmanager
def error_at(field: str) -> Iterator[None]:
    """Turn an InputError in the block into a Problem with this field of the body."""
    try:
        yield
    except (Problem, StorageError):
        raise
    except InputError as error:
        raise Problem(422, str(error), field) from None


@contextmanager
def not_found() -> Iterator[None]:
    """Turn an UnknownNameError in the block into a 404, for names that are part of the path."""
    try:
        yield
    except UnknownNameError as error:
        raise Problem(404, str(error)) from None


def json_pointer(path: Sequence[int | str]) -> str:
    """Return the JSON pointer of a path in the body."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in path]
    return "".join(f"/{part}" for part in parts)


def validation_response(errors: Sequence[ErrorDetails] | Sequence[Any]) -> Response:
    """Return the response to a body or parameters that do not validate."""
    problems = []
    for error in errors[:_MAX_ERRORS]:
        path = [part for part in error["loc"] if part != "body"]
        problems.append({"field": json_pointer(path), "detail": str(error["msg"])})
    first = problems[0] if problems else {"field": "", "detail": "it cannot be read"}
    where = f"{first['field']}: " if first["field"] else ""
    malformed = any(error["type"] == "json_invalid" for error in errors)
    return problem_response(400 if malformed else 422, f"{where}{first['detail']}", problems)


def error_response(error: Exception) -> Response:
    """Return the response to any other error."""
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, RequestValidationError):
        return validation_response(error.errors())
    if isinstance(error, HTTPException):
        return problem_response(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, StorageError):
        LOG.warning("%s", error)
        return problem_response(503, str(error), headers={"retry-after": "1"})
    if isinstance(error, BusyError):
        return problem_response(409, str(error))
    if isinstance(error, (InputError, ModelFileError)):
        return problem_response(422, str(error))
    LOG.error("unexpected %s", type(error).__name__, exc_info=error)
    return problem_response(500, "something unexpected went wrong; the log of the server says what")


def _routing_error(app: FastAPI, request: Request, error: HTTPException) -> HTTPException:
    """Return the error of a request without an endpoint: 405 with all allowed methods, or 404.

    The router passes requests that no endpoint takes on to the files of the page, which only GET and HEAD
    read. Older versions of starlette do not name these two.
    """
    path = request.scope["path"]
    methods = {
        method
        for known, operations in app.openapi()["paths"].items()
        if _path_pattern(known).fullmatch(path)
        for method in operations
    }
    if not methods and error.status_code == 405 and not path.startswith("/v1/"):
        methods = {"get", "head"}
    if methods:
        allowed = ", ".join(sorted(method.upper() for method in methods))
        return HTTPException(
            405, f"{request.method} is not allowed here; use {allowed}", headers={"allow": allowed}
        )
    return HTTPException(404, f"there is nothing at {path}") if path.startswith("/v1/") else error


@cache
def _path_pattern(path: str) -> re.Pattern[str]:
    """Return the pattern of a path of the OpenAPI document, in which ``{name}`` is any segment."""
    return re.compile(re.sub(r"\\\{[^/]*?\}", "[^/]+", re.escape(path)))


def install_handlers(app: FastAPI) -> None:
    """Install handlers that respond to every error with a problem."""

    async def http(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            error = _routing_error(app, request, error)
        return error_response(error)

    async def others(_: Request, error: Exception) -> Response:
        return error_response(error)

    app.add_exception_handler(RequestValidationError, others)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(HeadstartError, others)
    app.add_exception_handler(Exception, others)
