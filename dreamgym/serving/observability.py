"""What a server tells of itself: Prometheus metrics, and log lines of JSON."""

import datetime
import json
import sys
from typing import Any, TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.sessions = Gauge(
            "dreamgym_sessions", "Sessions that are open.", registry=registry
        )
        self.refusals = Counter(
            "dreamgym_refusals",
            "Connections and messages that were refused, by reason.",
            ["reason"],
            registry=registry,
        )
        self.closes = Counter(
            "dreamgym_sessions_closed",
            "Sessions that ended, by reason.",
            ["reason"],
            registry=registry,
        )
        self.episodes = Counter(
            "dreamgym_episodes_begun", "Episodes that were begun.", registry=registry
        )
        self.ends = Counter(
            "dreamgym_episodes_ended",
            "Episodes that ended, by how.",
            ["end"],
            registry=registry,
        )
        self.step_seconds = Histogram(
            "dreamgym_step_seconds", "Seconds until a step was done.", registry=registry
        )
        self.batch_size = Histogram(
            "dreamgym_model_batch_size",
            "Queries that one call of the experience model answered.",
            buckets=BATCH_SIZES,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "dreamgym_model_seconds",
            "Seconds that one call of the experience model took.",
            registry=registry,
        )
        self.waiting = Gauge(
            "dreamgym_model_queue", "Queries that no call has taken.", registry=registry
        )

    def on_batch(self, size: int, seconds: float) -> None:
        """Count a call of the experience model."""
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def log_event(event: str, *, file: TextIO | None = None, **facts: Any) -> None:
    """Write one line of JSON to stderr: time, event, and facts about it."""
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    row = {"time": time, "event": event, **facts}
    print(json.dumps(row), file=file or sys.stderr, flush=True)
