"""Damage saved models in random ways, load them, and count the outcomes.

Run ``.venv/bin/python -m tests.faults.corruption_round --seed 1 --cases 1200``. Each case damages one file of
a folder: a small model, one with a journal, one that is mapped into memory, and one with metadata, labels and
weights. The outcomes:

- clear: a ``ModelFileError`` in one line; if the digests were computed again, any error of Headstart;
- same: the model loads and predicts as before, with a warning where bytes were added;
- other: all digests were computed again, so that the folder is a valid model of other numbers;
- lost: the model loads without an acknowledged change, or predicts other numbers, and no digest was repaired;
- broken: a model with recomputed digests loads, and its predictions are not finite;
- raw: any other exception;
- hang: no answer within ``SECONDS``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from headstart import Headstart, HeadstartError, ModelFileError, Table
from headstart.model.saving.journal import encode_line
from tests.faults.input_round import HangError, deadline
from tests.faults.models import fresh
from tests.faults.test_tampering import rewritten, saved
from tests.limits import limits

SECONDS = 60

NUMBERS = [0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63), 0.5, 1e308, float("nan"), float("inf"), None, "x", [], {}]


# --- the folders --------------------------------------------------------------------------------------


def with_journal(place: Path) -> Path:
    """Save a model, and add changes of every sort to its journal."""
    fresh("rating").save(place)
    changes: list[Callable[[Headstart], object]] = [
        lambda model: model.add_feature("new", observations={"u1": 1, "u2": 2, "u3": 5}),
        lambda model: model.observe_feature("new", {"u4": 1}),
        lambda model: model.add_rows({"late": {"f1": 1, "new": 4}}),
        lambda model: model.observe([("u1", "f1", 5), ("late", "f2", 2)]),
        lambda model: model.remove_feature("f3"),
        lambda model: model.rename_row("u7", "u seven"),
        lambda model: model.remove_row("u9"),
        lambda model: model.observe_row("u2", {"f4": 3}),
    ]
    for change in changes:
        with Headstart.updating(place) as model:
            change(model)
    return place


def with_labels(place: Path) -> Path:
    """Save a model of categories and ordered labels, with metadata of rows and features."""
    random = np.random.default_rng(5)
    lines = [(f"u{i}", f"f{j}") for i in range(30) for j in range(8) if random.random() < 0.7]
    values = [["low", "middle", "high"][random.integers(3)] for _ in lines]
    frame = pd.DataFrame([*lines], columns=["row", "feature"]).assign(value=values)
    films = pd.DataFrame(
        {"feature": [f"f{j}" for j in range(8)], "year": range(1990, 1998), "genre": ["a", "b"] * 4}
    )
    people = pd.DataFrame({"row": [f"u{i}" for i in range(30)], "age": range(20, 50)})
    table = Table.read(frame, metadata=films, row_metadata=people, kinds="category", quiet=True)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    model.add_row("late", metadata={"age": 30})
    model.save(place)
    return place


def mapped(place: Path) -> Path:
    """Save a model that is mapped into memory."""
    with limits(mapped_from_bytes=0):
        return saved(place, "real")


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "small": lambda place: saved(place, "binary"),
    "journal": with_journal,
    "mapped": mapped,
    "labels": with_labels,
}


# --- the damages --------------------------------------------------------------------------------------


def damage_bytes(chance: random.Random, data: bytes) -> tuple[str, bytes]:
    """Return the name of a damage, and the damaged bytes."""
    at = chance.randrange(len(data)) if data else 0
    length = chance.choice([1, 7, 64, 512, 4096])
    end = min(len(data), at + length)
    other = chance.randrange(len(data)) if data else 0
    how = chance.choice(["flip", "cut", "zero", "swap", "insert", "repeat", "drop", "append", "empty"])
    if how == "flip" and data:
        return how, data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if how == "cut":
        return how, data[:at]
    if how == "zero":
        return how, data[:at] + b"\0" * (end - at) + data[end:]
    if how == "swap":
        first, second = sorted((at, other))
        size = min(length, second - first, len(data) - second)
        parts = (data[:first], data[second : second + size], data[first + size : second])
        return how, b"".join([*parts, data[first : first + size], data[second + size :]])
    if how == "insert":
        return how, data[:at] + chance.randbytes(length) + data[at:]
    if how == "repeat":
        return how, data[:end] + data[at:]
    if how == "drop":
        return how, data[:at] + data[end:]
    if how == "append":
        return how, data + chance.choice([b"\0" * length, chance.randbytes(length), data[-length:]])
    return "empty", b""


def leaves(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all parts of a JSON value."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path] * bool(path) + [inner for key, value in items for inner in leaves(value, (*path, key))]


def change_fact(chance: random.Random, facts: Any) -> None:
    """Replace, remove or repeat one part of a JSON value."""
    *parents, last = chance.choice(leaves(facts))
    part = facts
    for key in parents:
        part = part[key]
    how = chance.random()
    if how < 0.15:
        del part[last]
    elif how < 0.3 and isinstance(part, list):
        part.append(part[last])
    elif how < 0.45 and isinstance(part[last], str):
        part[last] = chance.choice(["", part[last] + "x", "rating:1:5", "real", "category", "\0", "é" * 300])
    elif how < 0.65 and isinstance(part[last], int | float):
        part[last] += chance.choice([1, -1, 1000])
    else:
        part[last] = chance.choice(NUMBERS)


def change_tensor(chance: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    """Change a number, the order, the length or the type of one tensor."""
    name = chance.choice(sorted(tensors))
    tensor = tensors[name].clone()
    how = chance.choice(["number", "number", "order", "short", "long", "type", "remove", "shape"])
    if how == "number" and tensor.numel():
        value = chance.choice([0, 1, -1, 99, 1e30, float("nan"), float("inf")])
        if not tensor.is_floating_point():
            value = chance.choice([0, 1, -1, 99, 2**40])
        tensor.view(-1)[chance.randrange(tensor.numel())] = torch.tensor(value).to(tensor.dtype)
    elif how == "order" and tensor.ndim:
        tensor = tensor.flip(0)
    elif how == "short" and tensor.ndim:
        tensor = tensor[:-1]
    elif how == "long" and tensor.ndim:
        tensor = torch.cat([tensor, tensor[:1]])
    elif how == "type":
        tensor = tensor.to(chance.choice([torch.float64, torch.float32, torch.int64, torch.uint8]))
    elif how == "shape":
        tensor = tensor.reshape(-1, 1)
    tensors[name] = tensor.contiguous()
    if how == "remove":
        del tensors[name]


def change_journal(chance: random.Random, path: Path, base: str) -> None:
    """Change the calls of a journal, with the digests of all lines as they should be."""
    changes = [json.loads(line.split(b" ", 2)[2]) for line in path.read_bytes().splitlines()]
    how = chance.random()
    if how < 0.15:
        chance.shuffle(changes)
    elif how < 0.25:
        changes.append(chance.choice(changes))
    else:
        change_fact(chance, changes)
    previous, content = base, b""
    for calls in changes:
        line = encode_line(previous, calls)
        previous = line.split(b" ", 2)[1].decode()
        content += line
    path.write_bytes(content)
    for acknowledged in path.parent.glob("acknowledged-*"):
        acknowledged.unlink()


def damage(chance: random.Random, place: Path) -> tuple[str, bool]:
    """Damage one file of a folder; return the damage, and whether the digests were computed again."""
    journals, base = (
        list(place.glob("journal-*")),
        json.loads((place / "model.json").read_bytes())["checksum"],
    )
    if chance.random() < 0.4:
        if journals and chance.random() < 0.6:
            change_journal(chance, journals[0], base)
            return "journal with right digests", True
        part = chance.choice(["facts", "tensors"])
        rewritten(
            place,
            lambda facts, tensors: (
                change_fact(chance, facts) if part == "facts" else change_tensor(chance, tensors)
            ),
        )
        return f"{part} with right digests", True
    path = chance.choice(sorted(place.iterdir()))
    if chance.random() < 0.05:
        path.unlink()
        return f"no {path.name.partition('-')[0]}", False
    if chance.random() < 0.05:
        other = chance.choice(sorted(place.iterdir()))
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return "files exchanged", False
    how, content = damage_bytes(chance, path.read_bytes())
    path.write_bytes(content)
    return f"{path.name.partition('-')[0]} {how}", False


# --- outcomes -----------------------------------------------------------------------------------------


def numbers_of(model: Headstart) -> list[str]:
    """Return the names of what has a mean: features, and the levels of categories."""
    names, predicted = [], model.predict(model.rows[:1])
    for name in model.features:
        is_category = model.feature(name).kind.name == "category"
        names += [f"{name}={level}" for level in predicted.levels(name)] if is_category else [name]
    return names


def content_of(model: Headstart) -> tuple[Any, ...]:
    """Return all names and predictions of a model."""
    predicted = model.predict(features=numbers_of(model))
    return tuple(model.rows), tuple(model.features), predicted.mean.tobytes(), predicted.std.tobytes()


def is_usable(model: Headstart) -> bool:
    """Use a model in several ways; return whether its numbers are finite."""
    names = numbers_of(model)
    predicted = model.predict(features=names)
    model.recommend(model.rows[0], features=names, mixed_kinds=True)
    copy = Headstart.from_state(model.state)
    copy.remove_row(model.rows[0])
    return bool(np.isfinite(predicted.mean).all() and np.isfinite(predicted.std).all())


def outcome_of(place: Path, expected: tuple[Any, ...], repaired: bool) -> tuple[str, str]:
    """Return the outcome of loading a damaged folder, and the message."""
    try:
        with deadline(SECONDS), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = Headstart.load(place)
            usable, content = is_usable(model), content_of(model)
    except HeadstartError as error:
        if not (repaired or isinstance(error, ModelFileError)):
            return "raw", f"{type(error).__name__}: {error}"[:400]
        text = str(error)
        return ("clear", text) if "\n" not in text and len(text) < 2000 else ("raw", text[:300])
    except HangError:
        return "hang", ""
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"[:400]
    message = "; ".join(str(each.message) for each in said)
    if not usable:
        return "broken", message
    if content == expected:
        return "same", message
    return ("other" if repaired else "lost"), message


def damaged(chance: random.Random, cases: int) -> Iterator[tuple[str, str, str]]:
    """Damage folders; yield the damage, the outcome and the message of each case."""
    with tempfile.TemporaryDirectory() as top:
        folders = {name: make(Path(top) / name) for name, make in FOLDERS.items()}
        contents = {name: content_of(Headstart.load(place)) for name, place in folders.items()}
        for number in range(cases):
            name = chance.choice(list(folders))
            place = Path(shutil.copytree(folders[name], Path(top) / f"case {number}"))
            with limits(mapped_from_bytes=0 if name == "mapped" else 2**24):
                try:
                    how, repaired = damage(chance, place)
                except (
                    HeadstartError,
                    AttributeError,
                    KeyError,
                    TypeError,
                    ValueError,
                    IndexError,
                    RuntimeError,
                ):
                    shutil.rmtree(place)
                    continue  # no folder with right digests can be made of it
                outcome, message = outcome_of(place, contents[name], repaired)
            yield f"{name}: {how}", outcome, message
            shutil.rmtree(place)


def main() -> None:
    """Damage folders, and print the counts and every case that is neither refused nor harmless."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1200)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    for how, outcome, message in damaged(random.Random(chosen.seed), chosen.cases):
        counts[outcome] += 1
        if outcome not in ("clear", "same", "other"):
            print(f"{outcome}: {how}: {message!r}", flush=True)
    for outcome, count in sorted(counts.items()):
        print(f"{outcome:7} {count}")


if __name__ == "__main__":
    main()
