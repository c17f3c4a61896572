"""All scenarios, by theme and name. A scenario is a function of an empty folder that returns an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.references import cases, commands, reading, saved, service, verbs

THEMES: dict[str, dict[str, Callable[[Path], Any]]] = {
    "reading": reading.SCENARIOS,
    "predictions": cases.SCENARIOS,
    "verbs": verbs.SCENARIOS,
    "saved": saved.SCENARIOS,
    "service": service.SCENARIOS,
    "commands": commands.SCENARIOS,
}
