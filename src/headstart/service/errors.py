"""Answer errors as ``application/problem+json`` (RFC 9457): what was wrong and where, never a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

_MOST_ERRORS = 20  # that one answer lists

SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was wrong and what to do."},
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


class Problem(HeadstartError):
    """An answer that is an error.

    Parameters
    ----------
    status : int
        The status of the answer.
    detail : str
        What was wrong and what to do, for a person.
    field : str, default=None
        A JSON pointer to what was wrong in the body, such as ``/observations/3/value``.
    headers : dict, default=None
        Further headers of the answer.
    """

    def __init__(
        self, status: int, detail: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.field, self.headers = status, detail, field, headers

    def response(self) -> Response:
        """The answer."""
        errors = [] if self.field is None else [{"field": self.field, "detail": self.detail}]
        return problem_response(self.status, self.detail, errors, self.headers)


def problem_response(
    status: int, detail: str, errors: Sequence[dict[str, Any]] = (), headers: dict[str, str] | None = None
) -> Response:
    """An answer that is an error."""
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
def error_at(field: str, *, status: int = 422) -> Iterator[None]:
    """Say of bad input in the block that it is about this field of the body."""
    try:
        yield
    except (Problem, StorageError):
        raise
    except InputError as error:
        raise Problem(status, str(error), field) from None


@contextmanager
def not_found() -> Iterator[None]:
    """Answer 404 if the block does not know a name that is part of the address."""
    try:
        yield
    except UnknownNameError as error:
        raise Problem(404, str(error)) from None


def pointer(place: Sequence[int | str]) -> str:
    """A JSON pointer to a place in the body."""
    parts = [str(each).replace("~", "~0").replace("/", "~1") for each in place]
    return "".join(f"/{part}" for part in parts)


def of_validation(errors: Sequence[ErrorDetails] | Sequence[Any]) -> Response:
    """The answer to a body or parameters of another form than documented."""
    listed = []
    for each in errors[:_MOST_ERRORS]:
        place = [part for part in each["loc"] if part != "body"]
        listed.append({"field": pointer(place), "detail": str(each["msg"])})
    first = listed[0] if listed else {"field": "", "detail": "it cannot be read"}
    where = f"{first['field']}: " if first["field"] else ""
    malformed = any(each["type"] == "json_invalid" for each in errors)
    return problem_response(400 if malformed else 422, f"{where}{first['detail']}", listed)


def of_error(error: Exception) -> Response:
    """The answer to any other error."""
    if isinstance(error, Problem):
        return error.response()
    if isinstance(error, StorageError):
        LOG.warning("%s", error)
        return problem_response(503, str(error), headers={"retry-after": "1"})
    if isinstance(error, BusyError):
        return problem_response(409, str(error))
    if isinstance(error, (InputError, ModelFileError)):
        return problem_response(422, str(error))
    LOG.error("unexpected %s", type(error).__name__, exc_info=error)
    return problem_response(500, "something unexpected went wrong; the log of the server says what")


def install(app: FastAPI) -> None:
    """Let every error of an application be a problem."""

    async def validation(_: Request, error: Exception) -> Response:
        return of_validation(error.errors() if isinstance(error, RequestValidationError) else [])

    async def http(_: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return of_error(error)
        headers = dict(error.headers or {})
        return problem_response(error.status_code, str(error.detail), headers=headers)

    async def others(_: Request, error: Exception) -> Response:
        return of_error(error)

    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(HeadstartError, others)
    app.add_exception_handler(Exception, others)
