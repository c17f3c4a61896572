"""Write the stored predictions anew: ``python -m tests.references.make``. Say in the commit why."""

from __future__ import annotations

import json
from pathlib import Path

from tests.references.cases import CASES, fitted, predictions

STORED = Path(__file__).parent / "predictions.json"


def main() -> None:
    """Fit every case and write its predictions."""
    found = {}
    for case, (table, settings) in CASES.items():
        answers = {name: {"mean": mean, "std": std} for name, mean, std in predictions(fitted(case))}
        found[case] = {"table": table, "settings": settings, "predictions": answers}
        print(case)
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(facts)}" for case, facts in found.items())
    STORED.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
