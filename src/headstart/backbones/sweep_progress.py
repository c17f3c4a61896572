"""How far sweeps have come, in files from which any number of processes can continue."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headstart.algebra.groups import Group
from headstart.algebra.honest import HonestRegression
from headstart.backbones.rows import RowPosterior
from headstart.core.devices import moved
from headstart.crew import crew
from headstart.errors import ModelFileError
from headstart.storage import pack, read_tensors, storing, write_bytes

if TYPE_CHECKING:
    from headstart.backbones.sweeping import FactorisationTraining

_ROWS = ("mean", "spread", "exactness")


class SweepProgress:
    """A file with all that is of the size of features, beside it one per process with its rows.

    The rows' files are written first and removed last, and the one that names them is replaced in one step:
    at any moment it and the files that it names are whole.

    Parameters
    ----------
    path : Path
        The file, in a folder that all processes see.
    seconds : float
        How often it is written, at most.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        self._saved = time.monotonic()

    # -- writing ----------------------------------------------------------------------------------

    def keep(self, training: FactorisationTraining, turn: int) -> None:
        """Write what has been reached after so many sweeps, if it is time to; after the last one always."""
        last = turn == training.backbone.sweeps
        due = crew().leads and (last or time.monotonic() - self._saved >= self.seconds)
        if not crew().count(due):
            return
        facts: dict[str, Any] = {"turn": turn, "rows": [], "regressions": {}}
        if not last:
            facts["rows"] = self._write_rows(training.rows, turn)
        tensors = {f"backbone/{name}": each for name, each in training.backbone.state_dict().items()}
        tensors |= {"generator": training.generator.get_state()}
        tensors |= {"prior_means": training.prior_means, "prior_covariance": training.prior_covariance}
        for name in ("head", "row"):
            held, said = _state_of(getattr(training, f"{name}_regression"))
            tensors |= {f"{name}/{key}": each for key, each in held.items()}
            facts["regressions"][name] = said
        if crew().leads:
            write_bytes(self.path, pack({name: each.clone() for name, each in tensors.items()}, facts))
            self._remove_other_rows({name for _, _, name in facts["rows"]})
        self._saved = time.monotonic()

    def _write_rows(self, rows: RowPosterior, turn: int) -> list[tuple[int, int, str]]:
        """Each process writes those that it has; returned are the beginning, number and file of each."""
        start, _ = crew().span(len(rows.mean))
        name = f"{self.path.stem}.rows-{turn}-{start}-of-{crew().size}.safetensors"
        write_bytes(self.path.with_name(name), pack({each: getattr(rows, each) for each in _ROWS}))
        names, counts = crew().texts([name]), crew().sizes(len(rows.mean))  # these wait for all
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return [(at, count, own[0]) for at, count, own in zip(starts, counts, names, strict=True)]

    def _remove_other_rows(self, kept: set[str]) -> None:
        ours = re.compile(rf"{re.escape(self.path.stem)}\.rows-\d+-\d+-of-\d+\.safetensors")
        with storing(self.path):
            for each in self.path.parent.iterdir():
                if ours.fullmatch(each.name) and each.name not in kept:
                    each.unlink(missing_ok=True)

    # -- reading ----------------------------------------------------------------------------------

    def restore(self, training: FactorisationTraining) -> int:
        """Continue with what the file holds; returns after how many sweeps, 0 if there is no file."""
        if not crew().count(crew().leads and self.path.exists()):
            return 0
        tensors, facts = crew().agreed(lambda: read_tensors(self.path))
        generator, device = tensors.pop("generator"), training.cells.values.device
        tensors = {name: each.to(device) for name, each in tensors.items()}
        parts: dict[str, dict[str, Tensor]] = {}
        for name, each in tensors.items():
            head, _, rest = name.partition("/")
            parts.setdefault(head, {})[rest] = each
        # Not copied into the tensors that are there: the kinds are those of the table, too.
        training.backbone.load_state_dict(parts["backbone"], assign=True)
        training.generator.set_state(generator)
        training.prior_means, training.prior_covariance = tensors["prior_means"], tensors["prior_covariance"]
        for name in ("head", "row"):
            restored = _regression(parts[name], facts["regressions"][name], shared=name == "row")
            setattr(training, f"{name}_regression", restored)
        if facts["rows"]:
            start, _ = crew().span(len(training.cells))
            rows = crew().agreed(lambda: self._read_rows(facts["rows"], start, start + len(training.cells)))
            training.rows = moved(rows, device)
        return int(facts["turn"])

    def _read_rows(self, files: list[tuple[int, int, str]], begin: int, end: int) -> RowPosterior:
        """The rows from ``begin`` up to ``end``, out of the files that have some of them."""
        found: dict[str, list[Tensor]] = {name: [] for name in _ROWS}
        for start, count, name in files:
            low, high = max(begin, start) - start, min(end, start + count) - start
            if low >= high:
                continue
            path = self.path.with_name(name)
            try:
                with safe_open(path, framework="pt") as file:
                    for each, parts in found.items():
                        parts.append(file.get_slice(each)[low:high])
            except (OSError, SafetensorError, FileNotFoundError) as error:
                raise ModelFileError(f"{path} is missing or damaged ({error}); start anew") from None
        if not found["mean"]:  # a process may have no rows that observed anything
            with safe_open(self.path.with_name(files[0][2]), framework="pt") as file:
                found = {each: [file.get_slice(each)[:0]] for each in _ROWS}
        return RowPosterior(*(torch.cat(parts) for parts in found.values()))


def _state_of(regression: HonestRegression) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All that a regression has chosen, as tensors and as facts."""
    tensors = {"strengths": regression.strengths, "gains": regression.gains}
    for place, group in enumerate(regression.groups):
        tensors |= {f"{place}/{name}": each for name, each in vars(group).items()}
    return tensors, {
        "groups": len(regression.groups),
        "members": regression.members,
        "tried": regression.tried,
    }


def _regression(tensors: dict[str, Tensor], facts: dict[str, Any], *, shared: bool) -> HonestRegression:
    groups = [
        Group(*(tensors[f"{place}/{name}"] for name in ("columns", "centre", "basis")))
        for place in range(facts["groups"])
    ]
    regression = HonestRegression(groups, shared=shared)
    regression.members, regression.tried = facts["members"], facts["tried"]
    regression.strengths, regression.gains = tensors["strengths"], tensors["gains"]
    return regression
