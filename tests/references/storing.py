"""How answers are stored as JSON, and how they are compared with what was stored."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from headstart import SurpriseWarning

HERE = Path(__file__).parent
DIGITS = 10  # significant ones of stored numbers
# Processors with other vector instructions differ by up to 6e-5 after training in single precision.
RELATIVE, ABSOLUTE = 1e-4, 1e-6
_NUMBER = re.compile(r"(-?\d+\.\d+(?:e[-+]?\d+)?)")  # within a text


def answer_of(scenario: Callable[[Path], Any], folder: Path) -> Any:
    """Play a scenario in an empty folder and return its plain answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurpriseWarning)  # small models are easily surprised
        return plain(scenario(folder))


def plain(answer: Any) -> Any:
    """Turn an answer into what JSON can hold, with rounded numbers."""
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        answer = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    if isinstance(answer, (np.ndarray, np.generic)):
        answer = answer.tolist()
    if answer is None or isinstance(answer, (bool, int, str)):
        return answer
    if isinstance(answer, float):
        return float(f"{answer:.{DIGITS}g}") if math.isfinite(answer) else str(answer)
    if isinstance(answer, Mapping):
        return {str(key): plain(value) for key, value in answer.items()}
    return [plain(value) for value in answer]


def differences(found: Any, stored: Any, place: str = "") -> Iterator[str]:
    """Name every place where two plain answers differ by more than the tolerance."""
    if _is_number(found) and _is_number(stored):
        if not math.isclose(found, stored, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            yield f"{place}: {found!r}, stored {stored!r}"
    elif isinstance(found, dict) and isinstance(stored, dict):
        if list(found) != list(stored):
            yield f"{place}: names {list(found)}, stored {list(stored)}"
        for name in found.keys() & stored.keys():
            yield from differences(found[name], stored[name], f"{place}/{name}")
    elif isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        for number, (one, other) in enumerate(zip(found, stored, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif isinstance(found, str) and isinstance(stored, str):
        if not _same_text(_NUMBER.split(found), _NUMBER.split(stored)):
            yield f"{place}: {found!r}, stored {stored!r}"
    elif found != stored:
        yield f"{place}: {found!r}, stored {stored!r}"


def _same_text(found: list[str], stored: list[str]) -> bool:
    """Return whether two texts agree, split at their numbers: a number by the tolerance or its last digit."""
    numbers = zip(found[1::2], stored[1::2], strict=False)
    return found[::2] == stored[::2] and all(_same_number(one, other) for one, other in numbers)


def _same_number(found: str, stored: str) -> bool:
    """Return whether two written numbers agree by the tolerance, or differ by one unit of the last digit."""
    one, other = Decimal(found), Decimal(stored)
    unit = max(Decimal(1).scaleb(int(each.as_tuple().exponent)) for each in (one, other))
    return abs(one - other) <= unit or math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def write(theme: str, answers: Mapping[str, Any]) -> None:
    """Store the answers of a theme, with a line for each part of an answer."""
    lines = [f"{_json(name)}: {_lines(answer)}" for name, answer in answers.items()]
    (HERE / f"{theme}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _lines(answer: Any) -> str:
    if not isinstance(answer, dict):
        return _json(answer)
    return "{\n" + ",\n".join(f" {_json(name)}: {_json(part)}" for name, part in answer.items()) + "\n}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read(theme: str) -> dict[str, Any]:
    """Read the stored answers of a theme."""
    stored: dict[str, Any] = json.loads((HERE / f"{theme}.json").read_text(encoding="utf-8"))
    return stored
