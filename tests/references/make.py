"""Write what is stored anew, and say in the commit why.

``python -m tests.references.make`` writes the predictions, ``python -m tests.references.make folders`` the
saved folders.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from headstart.model import Headstart
from headstart.model.saving.format import FORMAT
from tests.references.cases import CASES, fitted, folder_answers, folder_model, predictions

STORED = Path(__file__).parent / "predictions.json"
FOLDERS = Path(__file__).parent / "folders"


def main() -> None:
    """Fit every case and write its predictions."""
    found = {}
    for case, (table, settings) in CASES.items():
        answers = {name: {"mean": mean, "std": std} for name, mean, std in predictions(fitted(case))}
        found[case] = {"table": table, "settings": settings, "predictions": answers}
        print(case)
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(facts)}" for case, facts in found.items())
    STORED.write_text("{\n" + lines + "\n}\n")


def make_folders() -> None:
    """Save small models, and what they answer once they are loaded."""
    smallest = {"name": "pvae", "embedding": 3, "set_size": 4, "encoder_layers": [5], "latent": 3,
                "decoder_layers": [4]}  # fmt: skip
    chn = {"name": "chn", "embedding": 4, "encoding": 4, "context_layers": [6], "metadata_encoding": 3,
           "metadata_layers": [4], "parameter_layers": [6]}  # fmt: skip
    for name, settings in {
        f"format-{FORMAT}": {"backbone": {"name": "factorisation", "latent": 2, "signature": 1}},
        f"format-{FORMAT}-chn": {"backbone": smallest, "adapter": chn},
    }.items():
        folder = FOLDERS / name
        shutil.rmtree(folder, ignore_errors=True)
        folder_model(settings).save(folder)
        answers = folder_answers(Headstart.load(folder))
        facts = {
            part: {"mean": each.mean.tolist(), "std": each.std.tolist()} for part, each in answers.items()
        }
        (FOLDERS / f"{name}.json").write_text(json.dumps(facts))
        print(name)


if __name__ == "__main__":
    make_folders() if sys.argv[1:] == ["folders"] else main()
