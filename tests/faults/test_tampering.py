"""Whatever is done to the files of a saved model: it loads as it was, or it is said to be damaged."""

from __future__ import annotations

import builtins
import datetime
import hashlib
import io
import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from headstart import files as storage
from headstart.errors import HeadstartError, InputError, ModelFileError
from headstart.model import Headstart
from headstart.model.saving.format import checksum
from headstart.model.saving.lazy import write_lazy_file
from headstart.table.metadata import as_bytes, records_from
from tests.faults.models import fresh
from tests.limits import Limits
from tests.states import is_lazy

KINDS = ("rating", "real", "binary")
FLIPS = 1000
Facts = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def saved(place: Path, kind: str = "rating") -> Path:
    model = fresh(kind)
    model.add_feature("new", observations={"u1": 1, "u2": 1, "u3": 1})
    model.observe_feature("new", {"u4": 1})
    model.add_row("late", observations={"f1": 1})
    model.save(place)
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_changes_nothing_or_is_said(kind: str, tmp_path: Path) -> None:
    """1,000 bits of ``model.json`` over all models, one at a time."""
    index = saved(tmp_path / "m", kind) / "model.json"
    content, chance = index.read_bytes(), random.Random(KINDS.index(kind))
    expected = Headstart.load(index.parent).predict()
    loaded = 0
    for _ in range(FLIPS // len(KINDS) + 1):
        changed = bytearray(content)
        place = chance.randrange(len(changed))
        changed[place] ^= 1 << chance.randrange(8)
        index.write_bytes(bytes(changed))
        try:
            found = Headstart.load(index.parent).predict()
        except ModelFileError:
            continue
        loaded += 1
        assert (found.rows, found.features, found.kinds) == (expected.rows, expected.features, expected.kinds)
        assert np.array_equal(found.mean, expected.mean)
        assert np.array_equal(found.std, expected.std)
    assert loaded < FLIPS / 10  # most bits of the file count


def rewritten(place: Path, change: Callable[[Facts, Tensors], object]) -> None:
    """Change facts and tensors, with every digest as it should be."""
    index, weights = place / "model.json", next(place.glob("weights-*"))
    facts, tensors = json.loads(index.read_text()), storage.unpack_tensors(weights.read_bytes())
    del facts["checksum"]
    change(facts, tensors)
    weights.unlink()
    content = storage.pack_tensors(tensors)
    facts["weights_sha256"] = hashlib.sha256(content).hexdigest()
    facts["weights"] = f"weights-{facts['weights_sha256'][:16]}.safetensors"
    (place / facts["weights"]).write_bytes(content)
    base = checksum(facts)
    index.write_text(json.dumps({**facts, "checksum": base}))
    for quick in place.glob("lazy-*"):
        quick.unlink()
        write_lazy_file(facts, base, place)


def fact(path: str, value: object) -> Callable[[Facts, Tensors], None]:
    """Set a fact, such as ``features.shots.0``."""

    def change(facts: Facts, _: Tensors) -> None:
        *parents, last = path.split(".")
        part: Any = facts
        for name in parents:
            part = part[int(name) if isinstance(part, list) else name]
        part[int(last) if isinstance(part, list) else last] = value

    return change


def number(name: str, value: float, place: int = 0) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name].view(-1)[place] = value

    return change


def tensor(name: str, made: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Facts, Tensors], None]:
    def change(_: Facts, tensors: Tensors) -> None:
        tensors[name] = made(tensors[name]).contiguous()

    return change


NAN, INF = float("nan"), float("inf")
MADE: dict[str, Callable[[Facts, Tensors], object]] = {
    "no features": lambda facts, _: facts.pop("features"),
    "no rows": lambda facts, _: facts.pop("rows"),
    "no settings": lambda facts, _: facts.pop("settings"),
    "no kinds": fact("kinds", []),
    "a fact too many": fact("comment", "hello"),
    "another format": fact("format", 4),
    "an older format": fact("format", 0),
    "a format of text": fact("format", "1"),
    "negative shots": fact("features.shots.0", -3),
    "more shots than observations": fact("features.shots.16", 7),
    "fewer shots than observations": fact("features.shots.0", 1),
    "shots of half": fact("features.shots.0", 1.5),
    "an impossible kind": fact("features.kinds.0", "rating:5:1"),
    "a kind of nothing": fact("features.kinds.0", ""),
    "a kind that its values do not have": fact("features.kinds.0", "binary"),
    "a rating of other ends": fact("features.kinds.0", "rating:4:5"),
    "a row twice": fact("rows.0", "u2"),
    "a row without a name": fact("rows.0", ""),
    "a row that is a number": fact("rows.0", 7),
    "a feature twice": fact("features.names.0", "f1"),
    "a feature of the backbone under another name": fact("features.names.0", "renamed"),
    "a backbone's feature twice": fact("backbone_features.0", "f1"),
    "the adapter left open": fact("settings.adapter", "auto"),
    "an unknown adapter": fact("settings.adapter.name", "best"),
    "an unknown backbone": fact("settings.backbone.name", "deep"),
    "a backbone of other sizes": fact("settings.backbone.latent", 3),
    "a backbone of any size": fact("settings.backbone.latent", 10**9),
    "a signature of any size": fact("settings.backbone.signature", 10**12),
    "an unknown setting": fact("settings.backbone.depth", 3),
    "no packages": fact("packages", {}),
    "a middle that is no kind": fact("middle", "center"),
    "a judgement of nothing": fact("judgement", {}),
    "in the backbone, which does not read it": fact("features.in_backbone.16", True),
    "a weight that is no number": number("features/weight", NAN),
    "a covariance that is no number": number("features/covariance", NAN, 5),
    "an infinite bias": number("backbone/bias", INF),
    "an adapter that is no number": number("adapter/prior.base", NAN),
    "a calibration that is no number": number("calibration/factors", NAN),
    "a negative calibration": number("calibration/factors", -1.0),
    "a negative noise": number("features/noise", -1.0),
    "rows of a context out of order": tensor("contexts/rows", lambda rows: rows.flip(0)),
    "a context's row twice": number("contexts/rows", 0, 1),
    "an impossible value": number("contexts/values", 99.0),
    "observations that end before they begin": number("knowledge/indptr", 5, 0),
    "a kind of no number": number("knowledge/kinds", 9),
    "weights of double precision": tensor("features/weight", lambda each: each.double()),
    "weights of half precision": tensor("backbone/weight", lambda each: each.half()),
    "rows of a context as fractions": tensor("contexts/rows", lambda each: each.double()),
    "heads of another width": tensor("features/weight", lambda each: each[:, :-1]),
    "covariances of another width": tensor("features/covariance", lambda each: each[:, :-2]),
    "metadata it does not have": tensor("features/metadata", lambda each: torch.ones(len(each), 2)),
    "a head too many": tensor("features/bias", lambda each: torch.cat([each, each[:1]])),
    "a tensor of an unknown part": lambda _, tensors: tensors.update({"more/of": torch.zeros(1)}),
    "a tensor of an unknown name": lambda _, tensors: tensors.update({"contexts/more": torch.zeros(1)}),
    "a scalar for a table": tensor("knowledge/metadata", lambda _: torch.zeros(())),
    "no states": lambda _, tensors: tensors.pop("states/code"),
    "a new row without its observations": number("row_observations/rows", 39),
    "no grid": lambda _, tensors: tensors.pop("backbone_grid"),
    "no contexts": lambda _, tensors: [tensors.pop(name) for name in list(tensors) if "contexts" in name],
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("tampering") / "m")


@pytest.mark.parametrize("how", MADE)
def test_tampering_with_a_large_model_is_said(
    how: str, original: Path, tmp_path: Path, limits: Limits
) -> None:
    """A model that is mapped into memory gets the same checks, also if all its digests are right."""
    limits(mapped_from_bytes=0)
    place = tmp_path / "m"
    Headstart.load(original).save(place)
    assert list(place.glob("lazy-*"))
    rewritten(place, lambda *_: None)
    loaded = Headstart.load(place)
    assert is_lazy(loaded)
    try:
        rewritten(place, MADE[how])
    except (HeadstartError, AttributeError, KeyError, TypeError, ValueError):
        return  # a file for opening it quickly cannot be made of it
    with pytest.raises(ModelFileError, match=str(place)):
        Headstart.load(place)


QUICK: dict[str, Callable[[Facts, Tensors], object]] = {
    "other kinds": number("features/kinds", 1.5, 1),
    "other shots": number("features/shots", 3),
    "other numbers": tensor("features/numbers", lambda numbers: numbers.flip(0)),
    "a number beyond all": number("features/numbers", 2**32),
    "a negative number": number("features/numbers", -1),
    "other flags": tensor("features/flags", lambda flags: ~flags),
    "names in another order": tensor("names_of_features/order", lambda order: order.flip(0)),
    "another letter": number("names_of_rows/bytes", 120),
    "names that end elsewhere": number("names_of_rows/ends", 2**40, 3),
    "other facts": lambda facts, _: facts["facts"].update(arrivals=77),
    "another half-life": lambda facts, _: facts["facts"]["settings"].update(random_state=5),
    "fewer tensors": lambda _, tensors: tensors.pop("features/shots"),
}


@pytest.mark.parametrize("how", QUICK)
def test_a_quick_file_that_says_something_else_is_not_used(
    how: str, original: Path, tmp_path: Path, limits: Limits
) -> None:
    limits(mapped_from_bytes=0)
    place, whole = tmp_path / "m", Headstart.load(original)
    whole.save(place)
    (path,) = place.glob("lazy-*")
    tensors, facts = storage.read_tensors(path)
    QUICK[how](facts, tensors)
    path.write_bytes(storage.pack_tensors(tensors, facts))
    loaded = Headstart.load(place)
    assert not is_lazy(loaded)
    assert np.array_equal(loaded.predict().mean, whole.predict().mean)
    if "number" in how and how != "other numbers":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        Headstart.load(place, verify=False)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # 256 MB


SHAPES = {
    "a product that overflows": ([2**32, 2**32], [0, 0]),
    "a size that is no size": ([-1, -8], [0, 8]),
    "more lines than bytes": ([2**40, 0], [0, 0]),
    "a fraction": ([0.5], [0, 2]),
    "a truth": ([True], [0, 4]),
    "beyond the end": ([2**20], [0, 2**22]),
    "before the beginning": ([2], [-8, 0]),
    "one offset": ([2], [0]),
    "no list": (2, [0, 8]),
}


@pytest.mark.parametrize("how", SHAPES)
def test_a_header_asks_for_no_more_than_the_file_has(how: str, tmp_path: Path) -> None:
    shape, offsets = SHAPES[how]
    header = json.dumps({"t": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    path = tmp_path / "f"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(ModelFileError, match="damaged or cut short"):
        storage.MappedFile(path)


def arrow(table: pa.Table, compression: str | None = None) -> torch.Tensor:
    sink = io.BytesIO()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table)
    return torch.from_numpy(np.frombuffer(sink.getvalue(), dtype=np.uint8).copy())


def nulls(count: int) -> pa.Array:
    return pa.nulls(count)


BOMBS: dict[str, Callable[[], torch.Tensor]] = {
    "compressed": lambda: arrow(pa.table({"t": pa.array(["a" * 10**7])}), "zstd"),
    "compressed by lz4": lambda: arrow(pa.table({"t": pa.array([0] * 10**6)}), "lz4"),
    "a list of nothing": lambda: arrow(
        pa.table({"t": pa.ListArray.from_arrays(pa.array([0, 10**9], pa.int32()), nulls(10**9))})
    ),
    "a list of a fixed size": lambda: arrow(
        pa.table({"t": pa.FixedSizeListArray.from_arrays(nulls(10**9), 10**9)})
    ),
    "rows of nothing": lambda: arrow(pa.table({"t": nulls(10**9)})),
    "runs": lambda: arrow(
        pa.table({"t": pa.RunEndEncodedArray.from_arrays(pa.array([10**9], pa.int32()), pa.array([1]))})
    ),
    "a dictionary": lambda: arrow(pa.table({"t": pa.array(["a" * 10**6] * 9).dictionary_encode()})),
    "empty texts": lambda: arrow(pa.table({"t": pa.array([b""] * 9, pa.binary(0))})),
    "a map": lambda: arrow(pa.table({"t": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})),
    "offsets outside": lambda: torch.where(
        (text := arrow(pa.table({"t": ["abcabcab"]}))) == 8, torch.tensor(120, dtype=torch.uint8), text
    ),
    "nothing at all": lambda: torch.zeros(0, dtype=torch.uint8),
    "noise": lambda: torch.arange(200, dtype=torch.uint8),
}


@pytest.mark.parametrize("how", BOMBS)
def test_metadata_that_would_become_larger_than_its_bytes_is_refused(how: str) -> None:
    content = BOMBS[how]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="its metadata"):
        records_from(content, 1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # 256 MB


def test_metadata_of_every_type_is_read_again() -> None:
    record = {
        "text": "Amélie", "number": 1.5, "list": ["a", None], "none": None, "nones": [None, None],
        "nested": {"a": [1, 2], "b": {}}, "truth": True, "bytes": b"x", "day": datetime.date(2020, 1, 1),
    }  # fmt: skip
    content = as_bytes([record, {}], list(record))
    first, second = records_from(content, 2)
    assert first == {name: value for name, value in record.items() if value is not None}
    assert second == {}


@pytest.mark.parametrize("how", MADE)
def test_tampering_with_right_digests_is_said(how: str, original: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(original, tmp_path / "m"))
    rewritten(place, lambda *_: None)
    assert Headstart.load(place).features == Headstart.load(original).features
    rewritten(place, MADE[how])
    with pytest.raises(ModelFileError, match=str(place)):
        Headstart.load(place)


def with_link(place: Path, outside: Path, name: str) -> None:
    shutil.move(place / name, outside / name)
    (place / name).symlink_to(outside / name)


def with_hard_path(place: Path, outside: Path, where: str) -> None:
    index, weights = place / "model.json", next(place.glob("weights-*"))
    shutil.move(weights, outside / weights.name)
    facts = json.loads(index.read_text())
    del facts["checksum"]
    facts["weights"] = where.format(outside=outside, name=weights.name)
    index.write_text(json.dumps({**facts, "checksum": checksum(facts)}))


def swapped(place: Path, outside: Path) -> None:
    """The weights of another model under the name of this one's."""
    other = saved(outside / "other", "real")
    shutil.copy(next(other.glob("weights-*")), next(place.glob("weights-*")))


def swapped_index(place: Path, outside: Path) -> None:
    shutil.copy(saved(outside / "other", "real") / "model.json", place / "model.json")


def of_bytes(content: bytes) -> Callable[[Path, Path], None]:
    return lambda place, _: (place / "model.json").write_bytes(content) and None  # type: ignore[return-value]


def pipe(place: Path, _: Path) -> None:
    weights = next(place.glob("weights-*"))
    weights.unlink()
    os.mkfifo(weights)


def folder_of_weights(place: Path, _: Path) -> None:
    weights = next(place.glob("weights-*"))
    weights.unlink()
    weights.mkdir()


FILES: dict[str, Callable[[Path, Path], None]] = {
    "weights linked from outside": lambda place, out: with_link(place, out, next(place.glob("w*")).name),
    "index linked from outside": lambda place, out: with_link(place, out, "model.json"),
    "a path above": lambda place, out: with_hard_path(place, out, "../{name}"),
    "a full path": lambda place, out: with_hard_path(place, out, "{outside}/{name}"),
    "a path through itself": lambda place, out: with_hard_path(place, out, "../outside/{name}"),
    "no path": lambda place, out: with_hard_path(place, out, ""),
    "swapped weights": swapped,
    "swapped index": swapped_index,
    "a pipe": pipe,
    "a folder for a file": folder_of_weights,
    "nothing": of_bytes(b""),
    "not JSON": of_bytes(b"{"),
    "not text": of_bytes(b"\xff\xfe\x00"),
    "a list": of_bytes(b"[3]"),
    "deeper than any stack": of_bytes(b"[" * 100_000),
    "a number without end": of_bytes(b'{"format": ' + b"9" * 10_000 + b"}"),
    "half a character": of_bytes(b'{"format": 3, "rows": ["\\ud800"], "checksum": ""}'),
}


@pytest.mark.parametrize("how", FILES)
def test_tampering_with_files_is_said_and_nothing_outside_is_read(
    how: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, outside = Path(shutil.copytree(original, tmp_path / "m")), tmp_path / "outside"
    outside.mkdir()
    FILES[how](place, outside)
    opened: list[str] = []
    real_open, real_os_open = builtins.open, os.open

    def spy(path: Any, *args: Any, **named: Any) -> Any:
        opened.append(str(path))
        return real_open(path, *args, **named)

    def spy_os(path: Any, *args: Any, **named: Any) -> int:
        handle = real_os_open(path, *args, **named)
        opened.append(os.path.realpath(f"/proc/self/fd/{handle}") if os.path.exists("/proc") else str(path))
        return handle

    monkeypatch.setattr(builtins, "open", spy)
    monkeypatch.setattr(os, "open", spy_os)
    with pytest.raises(ModelFileError):
        Headstart.load(place)
    monkeypatch.undo()
    assert not [path for path in opened if path.startswith(str(outside))]


def test_there_are_enough_tamperings() -> None:
    assert len(MADE) + len(FILES) >= 50
