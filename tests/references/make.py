"""Write what is stored anew, and say in the commit why.

``python -m tests.references.make`` writes the answers of all scenarios, one file for each theme; names of
themes after it write only these. ``python -m tests.references.make folders`` writes the saved folders
instead.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from headstart import Headstart
from tests.references.cases import folder_answers, folder_model
from tests.references.storing import HERE, answer_of, plain, write
from tests.references.themes import THEMES

FOLDERS = HERE / "folders"
_PVAE = {"name": "pvae", "embedding": 3, "set_size": 4, "encoder_layers": [5], "latent": 3,
         "decoder_layers": [4]}  # fmt: skip
_CHN = {"name": "chn", "embedding": 4, "encoding": 4, "context_layers": [6], "metadata_encoding": 3,
        "metadata_layers": [4], "parameter_layers": [6]}  # fmt: skip
# Settings of the models whose saved folders are stored, by the name of the folder.
FOLDER_MODELS: dict[str, dict[str, Any]] = {
    "bayes": {"backbone": {"name": "factorisation", "latent": 2, "signature": 1}},
    "chn": {"backbone": _PVAE, "adapter": _CHN},
}


def main(themes: list[str]) -> None:
    """Play every scenario and write its answer."""
    torch.set_num_threads(1)
    os.environ["HEADSTART_CACHE"] = "off"
    for theme in themes or THEMES:
        answers = {}
        for name, scenario in THEMES[theme].items():
            with tempfile.TemporaryDirectory() as folder:
                answers[name] = answer_of(scenario, Path(folder))
        write(theme, answers)
        print(f"{theme}: {len(answers)} scenarios")


def make_folders() -> None:
    """Save small models, and what they answer once they are loaded."""
    for name, settings in FOLDER_MODELS.items():
        folder = FOLDERS / name
        shutil.rmtree(folder, ignore_errors=True)
        folder_model(settings).save(folder)
        answers = folder_answers(Headstart.load(folder))
        numbers = {part: {"mean": found.mean, "std": found.std} for part, found in answers.items()}
        folder.with_suffix(".json").write_text(json.dumps(plain(numbers)))
        print(folder.name)


if __name__ == "__main__":
    make_folders() if sys.argv[1:] == ["folders"] else main(sys.argv[1:])
