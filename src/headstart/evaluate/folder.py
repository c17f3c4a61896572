"""The folder of a benchmark: finished splits, checkpoints of unfinished ones, and the reports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headstart.config import Config
from headstart.errors import InputError
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.report import html_report, markdown_report
from headstart.evaluate.results import Results, Run
from headstart.evaluate.timing import Timing
from headstart.storage import read_json, write_bytes, write_json

FORMAT = 1
_MARK = "benchmark.json"


class SplitOutcome(Config):
    """The numbers of one finished split."""

    split: int
    facts: dict[str, int]  # number of features in each part, and of those left out
    used: dict[str, Any]  # the settings that really ran
    runs: tuple[Run, ...]
    timings: tuple[Timing, ...]


class BenchmarkFolder:
    """Keeps finished splits and checkpoints. A benchmark continues only with the same data and settings.

    ``benchmark.json`` contains the settings and the table's fingerprint, ``splits/N.json`` a finished
    split, and ``splits/N/`` the checkpoints of an unfinished one. ``publish`` writes the other files.
    """

    def __init__(self, path: Path, fingerprint: str, settings: dict[str, Any]) -> None:
        self.path = path
        # Splits can be added to a benchmark; with any other change it is a different benchmark.
        same = {name: value for name, value in settings.items() if name != "splits"}
        self._identity = json.loads(json.dumps({"format": FORMAT, "table": fingerprint, "settings": same}))

    def open(self) -> None:
        """Create the folder, or continue the benchmark in it; refuse a folder with other contents."""
        mark = self.path / _MARK
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{str(self.path)!r} is a file; name a folder to write the benchmark to")
        if mark.exists():
            self._compare(read_json(mark))
        elif self.path.exists() and any(self.path.iterdir()):
            raise InputError(
                f"{str(self.path)!r} is not empty and contains no benchmark; name a new or an empty folder"
            )
        (self.path / "splits").mkdir(parents=True, exist_ok=True)
        write_json(mark, self._identity)

    def _compare(self, identity: Any) -> None:
        subject = f"{str(self.path)!r} contains a benchmark"
        if not isinstance(identity, dict) or not isinstance(identity.get("settings"), dict):
            raise InputError(f"{subject} whose {_MARK} is damaged; name another folder")
        if identity.get("format") != FORMAT:
            raise InputError(f"{subject} of another format ({identity.get('format')!r}); name another folder")
        advice = "use the same ones to continue it, or name another folder"
        if identity.get("table") != self._identity["table"]:
            raise InputError(f"{subject} of other data; {advice}")
        there, here = identity["settings"], self._identity["settings"]
        differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if differing:
            name = differing[0]
            values = f"{name} = {json.dumps(there.get(name))}, now {json.dumps(here.get(name))}"
            raise InputError(f"{subject} with other settings ({values}); {advice}")

    def finished(self, split: int) -> SplitOutcome | None:
        """Return the numbers of a split, or None if it is not finished."""
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
        """Return the file for the checkpoint of one part of a split: the backbone or an adapter."""
        folder = self.path / "splits" / str(split)
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.safetensors"

    def keep(self, outcome: SplitOutcome) -> None:
        """Save a finished split and delete its checkpoints."""
        write_json(self._outcome(outcome.split), outcome.model_dump(mode="json"))
        shutil.rmtree(self.path / "splits" / str(outcome.split), ignore_errors=True)

    def publish(self, results: Results, timings: Sequence[Timing]) -> None:
        """Write the numbers, the picture (if matplotlib is installed) and the reports."""
        results.save(self.path / "results.json")
        write_json(self.path / "timing.json", [timing.model_dump(mode="json") for timing in timings])
        write_picture(self.path / "kshot.png", results)
        write_bytes(self.path / "report.html", html_report(results, timings).encode())
        write_bytes(self.path / "results.md", markdown_report(results, timings).encode())

    def _outcome(self, split: int) -> Path:
        return self.path / "splits" / f"{split}.json"


def write_picture(path: Path, results: Results, metrics: Sequence[str] | None = None) -> None:
    """Write the k-shot picture as PNG; without matplotlib, delete the picture of an earlier run."""
    try:
        write_bytes(path, plot_kshot(results, metrics))
    except MissingMatplotlibError:
        path.unlink(missing_ok=True)
