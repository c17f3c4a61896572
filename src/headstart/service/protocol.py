"""Limit the size and duration of the headers of requests."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS = 65_536  # bytes of the request line and all headers

HEADER_SECONDS = 20.0  # from the first byte, or from the connection


class LimitedProtocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, which refuses slow and endless headers.

    uvicorn keeps all bytes of headers that have not ended, and waits for more without a limit.
    """

    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, and count those of headers that have not ended."""
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADERS:
                self._refuse(f"The headers are larger than {MAX_HEADERS} bytes.")

    def on_message_begin(self) -> None:
        """Start the time limit of a request."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Stop the time limit."""
        self._stop_timer()
        super().on_headers_complete()

    def _await_headers(self) -> None:
        self._stop_timer()
        self._header_bytes = 0
        message = f"The headers took longer than {HEADER_SECONDS:g} seconds."
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._refuse, message)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, message: str) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.send_400_response(message)
