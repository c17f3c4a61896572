"""The calls that change a model while it is noted what does."""

from __future__ import annotations

from headstart.model.changing.journal import Call
from headstart.model.parts.fitted import Fitted


class Notes:
    """The calls by which a model became what it is now, since it was this one.

    A model may also change by what is no call, such as another ``fit``. Then the calls do not lead to it, and
    ``calls`` says so.
    """

    def __init__(self, fitted: Fitted) -> None:
        self._calls: list[Call] = []
        self._latest: Fitted | None = fitted

    def note(self, before: Fitted, after: Fitted, call: Call) -> None:
        """Note a call that changed the model from one state to another."""
        if self._latest is before:
            self._calls.append(call)
            self._latest = after

    def follow(self, before: Fitted, after: Fitted) -> None:
        """Note a change of what is never saved."""
        if self._latest is before:
            self._latest = after

    def forget(self) -> None:
        """The calls lead to nothing any more: the folder that they started from holds another model."""
        self._latest = None

    def calls(self, fitted: Fitted) -> list[Call] | None:
        """All calls that led to this state; None if others did."""
        return self._calls if self._latest is fitted else None
