"""Writer: takes changes into the store and the live model, one batch at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from headstart.errors import HeadstartError, InputError
from headstart.service.live.advancing import advanced
from headstart.service.live.changes import Change, ForgetRow, Planned
from headstart.service.live.delta import Delta
from headstart.service.live.model import LiveModel, arrivals_from
from headstart.service.live.state import LiveState
from headstart.service.problems import Problem
from headstart.service.store import writing

_MOST = 256  # changes in one transaction


@dataclass(frozen=True)
class Receipt:
    """What is said of a change that is committed."""

    answer: dict[str, Any]
    planned: Planned | None = None
    repeated: bool = False  # whether the answer is that of an earlier request with the same key


@dataclass
class _Waiting:
    change: Change
    key: str | None
    digest: str
    future: Future[Receipt] = field(default_factory=Future)


class Writer:
    """Writes changes in a thread of its own; those that wait share one transaction.

    Parameters
    ----------
    live : LiveModel
        The model that is changed.
    count : callable
        Called after each commit with how long it took and the plans that were carried out.
    """

    def __init__(self, live: LiveModel, count: Callable[[float, list[Planned]], None]) -> None:
        self._live = live
        self._count = count
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headstart-writer", daemon=True)
        self._thread.start()

    def submit(self, change: Change, key: str | None = None, digest: str = "") -> Future[Receipt]:
        """Ask for a change; the future is done when it is committed, or has its error."""
        waiting = _Waiting(change, key, digest)
        self._queue.put(waiting)
        return waiting.future

    def close(self) -> None:
        """Finish what waits, and stop."""
        self._queue.put(None)
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _MOST and not self._queue.empty():
                batch.append(self._queue.get())
            wanted = [
                each for each in batch if each is not None and each.future.set_running_or_notify_cancel()
            ]
            if wanted:
                self._write(wanted)
            if None in batch:
                return

    def _write(self, batch: list[_Waiting]) -> None:
        try:
            done = self._committed(batch)
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, InputError):
                for each in batch:  # one of them may be the reason
                    self._write([each])
                return
            batch[0].future.set_exception(error)
            for each in batch[1:]:
                each.future.set_exception(error)
            return
        for each, receipt in done:
            if isinstance(receipt, Receipt):
                each.future.set_result(receipt)
            else:
                each.future.set_exception(receipt)

    def _committed(self, batch: list[_Waiting]) -> list[tuple[_Waiting, Receipt | Exception]]:
        start = time.monotonic()
        done: list[tuple[_Waiting, Receipt | Exception]] = []
        live = self._live
        with live.lock:
            with live.store.writing() as connection:
                state = live.caught_up(connection)
                first = state
                merged: dict[tuple[str, str], Any] = {}
                for each in batch:
                    if merged and not each.change.merges:
                        state, merged = self._applied(state, merged, connection), {}
                    try:
                        receipt = self._taken(each, state, connection)
                    except HeadstartError as error:
                        done.append((each, error))
                        continue
                    done.append((each, receipt))
                    if receipt.planned is None:
                        continue
                    if each.change.merges:
                        merged |= {(cell.row, cell.feature): cell for cell in receipt.planned.delta.cells}
                    else:
                        state = advanced(state, receipt.planned.delta, arrivals_from(connection))
                    state = replace(state, number=receipt.answer["number"])
                if merged:
                    state = self._applied(state, merged, connection)
            if state is not first or state is not live.snapshot.state:
                live.publish(state)
        if any(isinstance(each.change, ForgetRow) for each in batch):
            live.store.clean()
        plans = [receipt.planned for _, receipt in done if isinstance(receipt, Receipt) and receipt.planned]
        self._count(time.monotonic() - start, plans)
        return done

    @staticmethod
    def _applied(state: LiveState, merged: dict[tuple[str, str], Any], connection: Connection) -> LiveState:
        return advanced(state, Delta(cells=list(merged.values())), arrivals_from(connection))

    @staticmethod
    def _taken(each: _Waiting, state: LiveState, connection: Connection) -> Receipt:
        """Check and record one change, unless its key has come before."""
        if each.key is not None:
            before = writing.remembered(connection, each.key)
            if before is not None:
                if before[0] != each.digest:
                    raise Problem(409, "this idempotency key was used with another body; use a new key")
                return Receipt(before[1], repeated=True)
        planned = each.change.plan(state.shown)
        number = each.change.record(connection, planned)
        answer = {**planned.said, "number": number}
        if each.key is not None:
            writing.remember(connection, each.key, each.digest, answer)
        return Receipt(answer, planned)
