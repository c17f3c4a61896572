"""Networks on texts and images: against loops, in training, in models, and refused where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from headstart import Headstart, Table
from headstart.adapters.chn import ImageNetwork, MetadataReader, TokenNetwork
from headstart.errors import UnsupportedError
from headstart.table import MetadataSchema
from headstart.table.columns import ImageShape, TokenSequence
from headstart.training.table_inputs import describe_features

WORDS = ("bad", "fine", "good")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_the_token_network_is_a_loop_over_words() -> None:
    network = TokenNetwork(TokenSequence(length=5, vocabulary=7), size=4)
    tokens = torch.tensor([[2, 6, 3, 3, 4], [5, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    result = network(tokens.float())
    weight, bias = network.convolution.weight, network.convolution.bias
    for line, words in enumerate(tokens.tolist()):
        largest = torch.zeros(4)
        for position, word in enumerate(words):
            if word == 0:
                continue
            total = bias.clone()
            for offset in (-1, 0, 1):
                if 0 <= position + offset < 5:
                    neighbour = network.embedding.weight[words[position + offset]]
                    total = total + weight[:, :, offset + 1] @ neighbour
            largest = torch.maximum(largest, total.relu())
        torch.testing.assert_close(result[line], largest)
    assert not bool(result[2].any())


def test_the_image_network_is_a_loop_over_pixels() -> None:
    shape = ImageShape(5, 4)
    network, pixels = ImageNetwork(shape, size=4), torch.rand(2, 20)
    result = network(pixels)

    def convolved(image: torch.Tensor, layer: torch.nn.Conv2d) -> torch.Tensor:
        _, height, width = image.shape
        out = torch.zeros(len(layer.weight), height, width)
        for y in range(height):
            for x in range(width):
                total = layer.bias.clone()
                for i in (-1, 0, 1):
                    for j in (-1, 0, 1):
                        if 0 <= y + i < height and 0 <= x + j < width:
                            total = total + layer.weight[:, :, i + 1, j + 1] @ image[:, y + i, x + j]
                out[:, y, x] = total.relu()
        return out

    for line in range(2):
        first = convolved(pixels[line].view(1, 5, 4), network.first)
        squares = [[first[:, y : y + 2, x : x + 2].amax((1, 2)) for x in (0, 2)] for y in (0, 2, 4)]
        pooled = torch.stack([torch.stack(part, 1) for part in squares], 1)  # (channels, 3, 2)
        second = convolved(pooled, network.second)
        # Three rows become two: the first two, and the last two.
        averaged = torch.stack([second[:, 0:2].mean(1), second[:, 1:3].mean(1)], dim=1)
        torch.testing.assert_close(result[line], network.last(averaged.flatten()).relu())


def test_other_columns_pass_unchanged() -> None:
    structures = (None, TokenSequence(3, 5), None, ImageShape(2, 2), ImageShape(0, 0))
    reader = MetadataReader([2, 3, 1, 4, 0], structures, size=6)
    metadata = torch.cat([torch.rand(3, 2), torch.randint(5, (3, 3)), torch.rand(3, 5)], dim=1)
    result = reader(metadata)
    assert result.shape == (3, reader.width) == (3, 2 + 6 + 1 + 6)
    torch.testing.assert_close(result[:, :2], metadata[:, :2])
    torch.testing.assert_close(result[:, 8], metadata[:, 5])
    torch.testing.assert_close(result[:, 2:8], reader.networks["1"](metadata[:, 2:5]))
    torch.testing.assert_close(result[:, 9:], reader.networks["3"](metadata[:, 6:10]))


def described_table(column: str, types: str) -> Table:
    """Ratings that depend on a word of the title, or on the brighter half of an icon, and on nothing else."""
    generator = np.random.default_rng(3)
    level = generator.integers(3, size=60)
    rows, features = np.nonzero(generator.random((40, 60)) < 0.5)
    values = np.clip(1 + 2 * level[features] + generator.integers(-1, 2, len(features)), 1, 5)
    names = np.array([f"f{i:02d}" for i in range(60)])
    content = [(_title if column == "title" else _icon)(level[i], generator) for i in range(60)]
    return Table.read(
        pa.table({"row": rows.astype(str), "feature": names[features], "value": values}),
        metadata=pa.table({"feature": names, column: content}),
        metadata_types={column: types},
    )


def _title(level: int, generator: np.random.Generator) -> str:
    about = [f"w{generator.integers(8)}" for _ in range(4)]
    about[generator.integers(4)] = WORDS[level]
    return " ".join(about)


def _icon(level: int, generator: np.random.Generator) -> list[list[float]]:
    icon: NDArray[np.float64] = generator.random((6, 6)) / 4
    icon[2 * level : 2 * level + 2] += 1
    return icon.tolist()  # type: ignore[no-any-return]


QUICK = {"pretraining": {"epochs": 10}, "metatraining": {"epochs": 40, "learning_rate": 3e-3}, "quiet": True}


@pytest.mark.parametrize(
    ("column", "types", "values"),
    [
        ("title", "tokens", ["w1 w2 bad w3", "good w7 w7 w7"]),
        ("icon", "image", [_icon(0, np.random.default_rng(8)), _icon(2, np.random.default_rng(9))]),
    ],
)
def test_a_model_learns_to_read_texts_and_images(
    column: str, types: str, values: list[object], tmp_path: Path
) -> None:
    model = Headstart("factorisation", "chn", **QUICK).fit(described_table(column, types))
    model.add_features({"low": {"metadata": {column: values[0]}}, "high": {"metadata": {column: values[1]}}})
    low, high = model.predict(features=["low", "high"]).mean.mean(axis=0)
    assert low < 2.2
    assert high > 3.8
    model.save(tmp_path / "model")
    copy = Headstart.load(tmp_path / "model")
    copy.add_feature("again", metadata={column: values[0]})
    again, before = copy.predict(features=["again"]), model.predict(features=["low"])
    np.testing.assert_allclose(again.mean[:, 0], before.mean[:, 0], rtol=1e-5)  # a batch of one or two


@pytest.mark.parametrize("adapter", ["auto", "bayes", "chn-bayes", "mean-head-matching", "bayes-train-1"])
def test_adapters_without_a_network_refuse_texts_and_images(adapter: str) -> None:
    table = described_table("title", "tokens")
    with pytest.raises(UnsupportedError, match=r"'title' has the type tokens:4, .*adapter='chn'"):
        Headstart(adapter=adapter, quiet=True).fit(table)


def test_adapters_that_read_no_metadata_take_them() -> None:
    quick = {"pretraining": {"epochs": 1}, "metatraining": {"epochs": 1}, "quiet": True}
    for adapter in ("mean", "knn-5", "maml-1", "chn-train-1"):
        Headstart(adapter=adapter, **quick).fit(described_table("title", "tokens"))


def test_backbones_leave_texts_and_images_out() -> None:
    table = described_table("title", "tokens")
    bare = replace(table, metadata=None, schema=None)
    one, other = (Headstart(adapter="mean", **QUICK).fit(data).predict() for data in (table, bare))
    np.testing.assert_array_equal(one.mean, other.mean)
    with_year = pa.table({"year": np.arange(60) % 7, "title": table.metadata["title"]})
    types = {"title": "tokens"}
    mixed = replace(table, metadata=with_year, schema=MetadataSchema.fit(with_year, types))
    year = with_year.select(["year"])
    plain = replace(table, metadata=year, schema=MetadataSchema.fit(year))
    for part, expected in zip(describe_features(mixed).groups, describe_features(plain).groups, strict=True):
        assert part.tolist() == expected.tolist()
    assert torch.equal(describe_features(mixed).numbers, describe_features(plain).numbers)
