"""Collect metrics for Prometheus: requests, latency, changes, shots and prediction errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from headstart.service.changes import Plan
from headstart.service.live_model import Snapshot

# Bounds of histogram buckets.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

_SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)

_NATS = (-2, -1, -0.5, -0.2, 0, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """The metrics of one worker; ``PROMETHEUS_MULTIPROC_DIR`` sums those of several workers."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        several = bool(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
        self.requests = Counter(
            "headstart_requests", "Answered requests", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "headstart_request_seconds", "Time to answer", ["route"], registry=registry, buckets=_SECONDS
        )
        self.adaptation = Histogram(
            "headstart_change_seconds",
            "Time to commit and apply one batch of changes",
            registry=registry,
            buckets=_SECONDS,
        )
        self.observations = Counter("headstart_observations", "Observations added", registry=registry)
        self.shots = Histogram(
            "headstart_shots", "First observations of new features", registry=registry, buckets=_SHOTS
        )
        self.surprise = Histogram(
            "headstart_surprise_nats",
            "Mean excess of the negative log-likelihood of observations over its expectation",
            registry=registry,
            buckets=_NATS,
        )
        mode: Literal["max", "all"] = "max" if several else "all"
        self.number = Gauge(
            "headstart_change_number", "Last change applied", registry=registry, multiprocess_mode=mode
        )
        self.features = Gauge("headstart_features", "Features", registry=registry, multiprocess_mode=mode)
        self.rows = Gauge("headstart_rows", "Rows", registry=registry, multiprocess_mode=mode)
        self._several = several
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count_changes(self, seconds: float, plans: Sequence[Plan]) -> None:
        """Count committed changes; their commit took ``seconds``."""
        self.adaptation.observe(seconds)
        for plan in plans:
            self.observations.inc(len(plan.delta.cells))
            for _ in plan.delta.features:
                self.shots.observe(len(plan.delta.cells))
            if plan.arrived.observations:
                self.surprise.observe(plan.arrived.excess / plan.arrived.observations)

    def count_response(self, route: str, status: int, seconds: float) -> None:
        """Count one response."""
        children = self._children.get((route, status))
        if children is None:  # finding them by labels costs more than counting
            children = self.requests.labels(route, str(status)), self.seconds.labels(route)
            self._children[route, status] = children
        requests, durations = children
        requests.inc()
        durations.observe(seconds)

    def text(self, snapshot: Snapshot | None) -> tuple[bytes, str]:
        """Return all metrics in Prometheus's text format, and its media type."""
        if snapshot is not None:
            self.number.set(snapshot.state.number)
            self.features.set(len(snapshot.model_state.feature_store.feature_names))
            self.rows.set(len(snapshot.model_state.rows))
        registry = self._registry
        if self._several:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST
