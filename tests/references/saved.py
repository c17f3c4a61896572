"""The files of saved models: their names, the keys of their JSON, and their tensors."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open

from headstart import Headstart
from tests.references.cases import model_of
from tests.references.verbs import ends, time_of, triples


def keys(value: Any, place: str = "") -> list[str]:
    """List the keys of JSON with all keys below them; of a list, those of its first element."""
    if isinstance(value, dict):
        below = [keys(each, f"{place}/{name}") for name, each in value.items()]
        return [place, *(name for names in below for name in names)]
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return keys(value[0], f"{place}/0")
    return [f"{place}: {type(value).__name__}"]


def tensors(path: Path) -> dict[str, str]:
    """Give the type and the shape of each tensor of a file."""
    with safe_open(path, "numpy") as file:
        parts = {name: file.get_slice(name) for name in sorted(file.keys())}
        return {name: f"{part.get_dtype()} {part.get_shape()}" for name, part in parts.items()}


def files(folder: Path) -> dict[str, Any]:
    """Describe every file of a saved model; digests in names are left out."""
    found = {}
    for path in sorted(folder.iterdir()):
        name = re.sub(r"-[0-9a-f]{16}\.", "-DIGEST.", path.name)
        if path.suffix == ".safetensors":
            found[name] = tensors(path)
        elif path.suffix == ".json":
            found[name] = keys(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            lines = [json.loads(line.split(" ", 2)[2]) for line in path.read_text().splitlines()]
            found[name] = [[keys(call, call["verb"]) for call in line] for line in lines]
        else:
            found[name] = path.stat().st_size
    return found


def saved(name: str, folder: Path) -> Any:
    """Save a model, change it in place, and save it anew."""
    place, answers = folder / "model", {}
    model_of(f"bayes {name}").save(place)
    answers["saved"] = files(place)
    with Headstart.updating(place) as model:
        first, second = model.features[:2]
        model.add_feature("new", kind=str(model.feature(first).kind))
        model.add_rows({"guest": {first: ends(model, first)[1]}})
        model.observe(triples(model, 2), **time_of(model))
        model.observe_feature("new", {"guest": ends(model, first)[0]}, **time_of(model))
        model.rename_feature(second, "other")
        model.rename_row(model.rows[0], "somebody")
        model.remove_row(model.rows[9])
        model.remove_feature(first)
    answers["changed"] = files(place)
    Headstart.load(place).save(place)
    answers["saved again"] = files(place)
    return answers


def saved_network(folder: Path) -> Any:
    """Save a model of two networks."""
    model_of("chn pvae").save(folder / "model")
    return files(folder / "model")


SCENARIOS = {
    "ratings": partial(saved, "ratings"),
    "reals": partial(saved, "reals"),
    "dated": partial(saved, "dated"),
    "networks": saved_network,
}
