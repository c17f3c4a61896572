"""The layers that CONTRIBUTING.md lists are those of the import contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_contributing_lists_the_layers_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    layers = [set(re.findall(r"headstart\.(\w+)", layer)) for layer in contract["layers"]]
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paragraph = next(each for each in text.split("\n\n") if each.startswith("**Layers.**"))
    arrows = next(each for each in re.split(r"(?<=`)\.\s", paragraph) if "→" in each)
    listed = [set(re.findall(r"`(\w+)`", layer)) for layer in arrows.split("→")]
    assert listed == layers
