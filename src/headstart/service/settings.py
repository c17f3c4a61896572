"""The settings of a service."""

from __future__ import annotations

from headstart.config import Config


class ServiceSettings(Config):
    """What a service allows, and how it looks for changes."""

    loopback: bool = True  # whether only this machine can reach it; otherwise a token is always needed
    hosts: tuple[str, ...] = (
        "localhost",
        "127.0.0.1",
        "[::1]",
        "testserver",
    )  # names it answers to, without tokens
    max_body: int = 16_000_000  # bytes of one request
    max_batch: int = 100_000  # observations in one request
    max_cells: int = 4_000_000  # cells of one prediction
    max_listed: int = 1000  # lines of one page of a list, or of one ranking
    rate: float = 2000.0  # requests per second and token, on average
    burst: float = 4000.0  # requests of one token at once
    poll_seconds: float = 0.25  # between two looks for changes of other workers, tokens and models
    watch_model: bool = True  # whether a model that replaces the served one in its folder is taken over
    threads: int = 4  # for answers that take long
