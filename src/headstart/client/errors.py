"""The error of a client."""

from __future__ import annotations

from typing import Any

from headstart.errors import HeadstartError


class ServiceError(HeadstartError):
    """A service refused a request, or could not be reached.

    Attributes
    ----------
    status : int
        The status of the answer; 0 if there was none.
    detail : str
        What was wrong and what to do.
    fields : list of str
        JSON pointers to what was wrong in the body.
    """

    def __init__(self, status: int, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(detail if not status else f"{detail} (status {status})")
        self.status, self.detail = status, detail
        self.fields = [str(each.get("field", "")) for each in errors or []]
