"""The folder of a benchmark: what is finished, what is under way, and what people look at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headstart.config import Config
from headstart.errors import InputError
from headstart.evaluate.plots import plot_kshot
from headstart.evaluate.report import html_report, markdown_report
from headstart.evaluate.results import Results, Run
from headstart.evaluate.timing import Timing
from headstart.storage import read_json, write_bytes, write_json

FORMAT = 1
_MARK = "benchmark.json"


class SplitOutcome(Config):
    """All that one finished split found."""

    split: int
    facts: dict[str, int]  # how many features were in each part, and how many left out
    used: dict[str, Any]  # the settings that really ran
    runs: tuple[Run, ...]
    timings: tuple[Timing, ...]


class BenchmarkFolder:
    """Keeps finished splits and checkpoints, and only ever goes on with the same data and settings.

    ``benchmark.json`` says what the folder is of; ``splits/N.json`` holds a finished split and
    ``splits/N/`` the checkpoints of one under way; the rest is what ``publish`` writes.
    """

    def __init__(self, path: Path, fingerprint: str, settings: dict[str, Any]) -> None:
        self.path = path
        # More splits can be added to a benchmark; anything else makes it another one.
        same = {name: value for name, value in settings.items() if name != "splits"}
        self._identity = json.loads(json.dumps({"format": FORMAT, "table": fingerprint, "settings": same}))

    def open(self) -> None:
        """Make the folder, or go on with what it holds; refuse one that holds something else."""
        mark = self.path / _MARK
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{str(self.path)!r} is a file; name a folder to write the benchmark to")
        if mark.exists():
            self._compare(read_json(mark))
        elif self.path.exists() and any(self.path.iterdir()):
            raise InputError(
                f"{str(self.path)!r} is not empty and holds no benchmark; name a new or an empty folder"
            )
        (self.path / "splits").mkdir(parents=True, exist_ok=True)
        write_json(mark, self._identity)

    def _compare(self, found: Any) -> None:
        told = f"{str(self.path)!r} holds a benchmark"
        if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
            raise InputError(f"{told} whose {_MARK} is damaged; name another folder")
        if found.get("format") != FORMAT:
            raise InputError(f"{told} of another format ({found.get('format')!r}); name another folder")
        advice = "use the same to go on with it, or name another folder"
        if found.get("table") != self._identity["table"]:
            raise InputError(f"{told} of other data; {advice}")
        there, here = found["settings"], self._identity["settings"]
        differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if differing:
            name = differing[0]
            values = f"{name} = {json.dumps(there.get(name))}, now {json.dumps(here.get(name))}"
            raise InputError(f"{told} with other settings ({values}); {advice}")

    def finished(self, split: int) -> SplitOutcome | None:
        """What a split found, if it is finished."""
        path = self._outcome(split)
        if not path.exists():
            return None
        try:
            outcome = SplitOutcome(**read_json(path))
        except (InputError, TypeError, ValidationError) as error:
            raise InputError(
                f"{str(path)!r} is damaged ({error}); delete it to run the split again"
            ) from None
        return outcome

    def checkpoint(self, split: int, name: str) -> Path:
        """Where training of one part of a split keeps its checkpoint."""
        folder = self.path / "splits" / str(split)
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.safetensors"

    def keep(self, outcome: SplitOutcome) -> None:
        """Remember a finished split; its checkpoints are no longer needed."""
        write_json(self._outcome(outcome.split), outcome.model_dump(mode="json"))
        shutil.rmtree(self.path / "splits" / str(outcome.split), ignore_errors=True)

    def publish(self, results: Results, timings: Sequence[Timing]) -> None:
        """Write what people look at: numbers, picture and reports."""
        results.save(self.path / "results.json")
        write_json(self.path / "timing.json", [timing.model_dump(mode="json") for timing in timings])
        write_bytes(self.path / "kshot.png", plot_kshot(results))
        write_bytes(self.path / "report.html", html_report(results, timings).encode())
        write_bytes(self.path / "results.md", markdown_report(results, timings).encode())

    def _outcome(self, split: int) -> Path:
        return self.path / "splits" / f"{split}.json"
