"""Running experiments: each study runs once and can be continued; then all reports are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headstart.datasets import DATASETS, data_folder
from headstart.errors import InputError
from headstart.evaluate.benchmark import Benchmark
from headstart.evaluate.results import Results
from headstart.evaluate.timing import Timing
from headstart.experiments.catalogue import ALL, STUDIES, experiments_named, methods_of
from headstart.experiments.presets import preset as preset_of
from headstart.experiments.publishing import publish, versions
from headstart.experiments.showing import show
from headstart.progress import Reporter
from headstart.storage import read_json, write_json
from headstart.table import Table

FORMAT = 1
_MARK = "experiment.json"
_QUICK_NOTE = "A quick run on made-up data, to check that everything works; the numbers mean nothing."


class Reproduction:
    """One experiment of the paper, or all of them.

    Wrong arguments are refused here, before any work begins. With ``quick``, small made-up data and a
    few epochs are used, and no data folder is needed.
    """

    def __init__(
        self,
        name: str,
        data: str | Path | None = None,
        *,
        splits: int = 5,
        seed: int = 0,
        preset: str = "paper",
        quick: bool = False,
    ) -> None:
        self.experiments = experiments_named(name)
        self.methods = methods_of(self.experiments)
        self.name, self.preset, self.quick = name, preset, quick
        self.splits, self.seed = splits, seed
        for study in self.methods:
            preset_of(preset, STUDIES[study].dataset)
        self.data = None if quick else data_folder(data)

    def run(self, out: str | Path, reporter: Reporter | None = None) -> list[Path]:
        """Run the studies that are not finished in ``out``, write the reports, and return their folders."""
        reporter, out = reporter or Reporter(quiet=True), Path(out)
        benchmarks = self._benchmarks()
        self._open(out)
        studies = {
            study: self._study(study, benchmark, out / "studies" / study, reporter)
            for study, benchmark in benchmarks.items()
        }
        folders = []
        for name, experiment in self.experiments.items():
            parts = [show(experiment, study, *studies[study]) for study in experiment.methods]
            settings = {
                **self._identity,
                "experiment": name,
                "splits": self.splits,
                "versions": versions(),
                "studies": {part.study: part.results.settings for part in parts},
            }
            folder = out / name if self.name == ALL else out
            publish(folder, experiment, parts, settings)
            folders.append(folder)
        return folders

    @property
    def _identity(self) -> dict[str, Any]:
        return {"format": FORMAT, "experiment": self.name, "preset": self.preset, "quick": self.quick,
                "seed": self.seed}  # fmt: skip

    def _open(self, out: Path) -> None:
        """Create the folder, or continue with it; refuse a folder with other contents."""
        if out.exists() and not out.is_dir():
            raise InputError(f"{str(out)!r} is a file; name a folder to write the experiment to")
        mark = out / _MARK
        if mark.exists():
            old, new = read_json(mark), self._identity
            differing = [name for name in new if not isinstance(old, dict) or old.get(name) != new[name]]
            if differing:
                name = differing[0]
                before = json.dumps(old.get(name) if isinstance(old, dict) else old)
                raise InputError(
                    f"{str(out)!r} contains another experiment ({name} = {before}, "
                    f"now {json.dumps(new[name])}); name another folder"
                )
        elif out.exists() and any(out.iterdir()):
            raise InputError(
                f"{str(out)!r} is not empty and contains no experiment; name a new or an empty folder"
            )
        out.mkdir(parents=True, exist_ok=True)
        write_json(mark, self._identity)

    def _benchmarks(self) -> dict[str, Benchmark]:
        """Return the benchmark of each study; missing or damaged data sets are reported here."""
        tables: dict[str, Table] = {}
        benchmarks = {}
        for name, methods in self.methods.items():
            study = STUDIES[name]
            dataset = DATASETS[study.dataset]
            if study.dataset not in tables:
                tables[study.dataset] = dataset.synthetic() if self.data is None else dataset.load(self.data)
            chosen = preset_of(self.preset, study.dataset)
            config = (chosen.quick() if self.quick else chosen).benchmark(
                methods, self.splits, self.seed, study.by
            )
            title = f"made-up data in the shape of {dataset.title}" if self.quick else dataset.title
            benchmarks[name] = Benchmark(tables[study.dataset], config, title)
        return benchmarks

    def _study(
        self, name: str, benchmark: Benchmark, folder: Path, reporter: Reporter
    ) -> tuple[Results, list[Timing]]:
        """Run or continue one benchmark, and add a note about its data."""
        reporter.say(f"Study {name}: {benchmark.name}")
        results = benchmark.run(folder, reporter)
        note = _QUICK_NOTE if self.quick else DATASETS[STUDIES[name].dataset].note
        results = results.model_copy(update={"data": {"note": note, "preset": self.preset, **results.data}})
        return results, [Timing(**timing) for timing in read_json(folder / "timing.json")]
