"""Categories and labels of a fitted model: from answers such as "agree" and "B" to columns, and back.

A category is one feature for users, and one binary column per level in the model, named ``FEATURE=LEVEL``.
This module replaces categories by their columns in the arguments of methods, and columns by their category in
results. Where a number is asked for, as in a ranking, the name of a column means the event that the answer is
this level: a binary feature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, did_you_mean, join_names, option_name
from headstart.model.features import Feature
from headstart.model.state import ModelState
from headstart.table.kind_inference import parse_kind
from headstart.table.kinds import Kind, column_name, is_value, owner_of_column, split_column
from headstart.table.labels import LEVEL
from headstart.table.margins import Category
from headstart.table.names import as_name
from headstart.training.level_strength import level_chances


def category_columns(model: ModelState, feature: object) -> list[str]:
    """Return the columns of a category; empty if the model has no such category."""
    if isinstance(feature, str) and feature in model.feature_store:
        return []
    name = str(feature) if isinstance(feature, int) and abs(feature) < 2**63 else feature
    return model.feature_store.categories.get(name.strip(), []) if isinstance(name, str) else []


def columns_of(model: ModelState, features: Iterable[Any]) -> list[Any]:
    """Replace the categories among ``features`` by their columns; other names stay."""
    return [column for feature in features for column in category_columns(model, feature) or [feature]]


def is_level(feature: Feature) -> bool:
    """Return whether a feature of the model is the column of a level."""
    return isinstance(feature.kind.margin, Category)


def owner_of(feature: Feature) -> str:
    """Return the name of the category of a column, or of any other feature itself."""
    return owner_of_column(feature.name, feature.kind)


def require_whole(model: ModelState, feature: object, verb: str) -> None:
    """Raise an error if ``feature`` is one level of a category; ``verb`` is applied to whole features."""
    if isinstance(feature, str) and feature in model.feature_store:
        known = model.feature_store[feature]
        if is_level(known):
            raise InputError(f"{feature!r} is a level of {owner_of(known)!r}; {verb} {owner_of(known)!r}")


def renamed_columns(model: ModelState, feature: object, to: str) -> dict[Any, str]:
    """Return the new name of each column of ``feature``, checked, if the feature is renamed ``to``."""
    require_whole(model, feature, "rename")
    renamed = dict.fromkeys(columns_of(model, [feature]), to)
    if category_columns(model, feature):
        renamed = {column: column_name(to, split_column(column)[1]) for column in renamed}
    if to != feature and (category_columns(model, to) or to in model.feature_store):
        raise InputError(f"feature {to!r} is already in the model")
    for column, new in renamed.items():
        exists = new in model.feature_store or new in model.backbone_features
        if exists and new != model.feature_store[column].name:
            raise InputError(f"feature {new!r} is already in the model, or was in the table of its fit")
    return renamed


def complete_categories(model: ModelState, features: Sequence[Feature]) -> list[str]:
    """Return the names of ``features`` and, after them, of other columns of their categories."""
    names = [feature.name for feature in features]
    groups = dict.fromkeys(owner_of(feature) for feature in features if is_level(feature))
    columns = [column for group in groups for column in category_columns(model, group)]
    listed = set(names)
    return [*names, *(column for column in columns if column not in listed)]


def level_values(columns: Sequence[str], value: object, what: str) -> dict[str, float]:
    """Return the values of the columns of a category: 1 for the level ``value``, 0 for the others."""
    levels = [split_column(column)[1] for column in columns]
    label = value_text(value)
    if label not in levels:
        raise InputError(
            f"{what}: the value {label!r} is not one of {join_names(levels, 10)}{did_you_mean(label, levels)}"
        )
    return {column: float(level == label) for column, level in zip(columns, levels, strict=True)}


def value_text(value: object) -> str:
    """Return a label as text: whole numbers without a decimal point."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def expand_answers(model: ModelState, answers: Mapping[Any, Any], what: str) -> dict[Any, Any]:
    """Return the observations ``{feature: value}`` of a row with labels and categories as numbers."""
    answered = {level for feature, value in answers.items() if (level := _answer(model, feature, value))}
    expanded: dict[Any, Any] = {}
    for feature, value in answers.items():
        for name, number in expand_answer(model, feature, value, what, answered):
            if name in expanded:
                raise InputError(f"{what}: {name!r} is given twice; keep one")
            expanded[name] = number
    return expanded


def _answer(model: ModelState, feature: object, value: object) -> str | None:
    """Return the category that is answered by the value 1 of a level; None for any other observation."""
    if not (is_value(value) and value == 1) or not isinstance(feature, str):
        return None
    if feature not in model.feature_store:
        return None
    known = model.feature_store[feature]
    return owner_of(known) if is_level(known) else None


def expand_answer(
    model: ModelState, feature: object, value: object, what: str, answered: Container[str] = ()
) -> list[tuple[Any, Any]]:
    """Return one answer as pairs of a feature or column of the model and a number.

    The value 1 of a level means 0 at the other levels. A 0 means that another level was observed: then the
    category is among ``answered``.
    """
    if isinstance(feature, str) and feature in model.feature_store:
        what, known = f"{what}, feature {feature!r}", model.feature_store[feature]
        if not is_level(known):
            return [(feature, label_value(known.kind, value, what))]
        owner, level = split_column(feature)
        if is_value(value) and value == 0 and owner in answered:
            return []
        if not (is_value(value) and value == 1):
            raise InputError(f"{what}: say which level of {owner!r} was observed, as {owner!r} = {level!r}")
        return list(level_values(category_columns(model, owner), level, what).items())
    if columns := category_columns(model, feature):
        return list(level_values(columns, value, f"{what}, feature {feature!r}").items())
    return [(feature, value)]


def label_value(kind: Kind, value: object, what: str) -> object:
    """Return the number of a label; other values unchanged."""
    if not isinstance(value, str):
        return value
    number = kind.margin.value(value)
    if number is None and kind.margin.labels:
        near = did_you_mean(value, kind.margin.labels)
        raise InputError(f"{what}: the value {value!r} is not {kind.allowed}{near}")
    return value if number is None else number


def expand_triples(model: ModelState, entries: Sequence[Any]) -> tuple[Sequence[Any], list[int]]:
    """Return entries (row, feature, value, …) with labels and categories as numbers.

    Returns also the number of entries that each one becomes; empty if nothing changes.
    """
    plain = all(
        isinstance(entry, (tuple, list))
        and len(entry) >= 3
        and not isinstance(entry[2], str)
        and isinstance(entry[1], str)
        and entry[1] in model.feature_store
        and not is_level(model.feature_store[entry[1]])
        for entry in entries
    )
    if plain:
        return entries, []
    answered: dict[Any, set[str]] = {}  # the categories that are answered by the value 1 of a level, by row
    for entry in entries:
        is_triple = isinstance(entry, (tuple, list)) and len(entry) in (3, 4)
        if is_triple and (category := _answer(model, entry[1], entry[2])):
            answered.setdefault(str(entry[0]), set()).add(category)
    expanded: list[Any] = []
    repeats: list[int] = []
    for entry in entries:
        if not isinstance(entry, (tuple, list)) or len(entry) not in (3, 4):
            expanded.append(entry)  # refused later
            repeats.append(1)
            continue
        row, feature, value, *time = entry
        pairs = expand_answer(model, feature, value, f"row {row!r}", answered.get(str(row), ()))
        expanded += [(row, name, number, *time) for name, number in pairs]
        repeats.append(len(pairs))
    return expanded, repeats


def expand_new_features(model: ModelState, features: Mapping[Any, Any]) -> dict[Any, Any]:
    """Replace each new category ``{name: {"kind": "category:A,B", …}}`` by its columns; others stay."""
    expanded: dict[Any, Any] = {}
    for key, parts in features.items():
        if not isinstance(parts, Mapping) or not _is_category(model, parts):
            if isinstance(parts, Mapping) and parts.get("levels") is not None:
                raise InputError(f"feature {key!r}: only a category has {option_name('levels')}")
            expanded[key] = parts
            continue
        name = as_name(key, "feature")
        if name in model.feature_store or category_columns(model, name):
            raise InputError(f"feature {name!r} is already in the model")
        for column, column_parts in _columns_of_new(model, name, parts).items():
            expanded[column] = column_parts
    return expanded


def _is_category(model: ModelState, parts: Mapping[str, Any]) -> bool:
    """Return whether a new feature is a category: as given, or as most features of the model."""
    kind = parts.get("kind")
    if kind is None:
        return model.kinds[0] == Kind(Category()) or parts.get("levels") is not None
    margin = parse_kind(kind)
    return isinstance(margin.margin if isinstance(margin, Kind) else margin, Category)


def _columns_of_new(model: ModelState, name: str, parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the columns of a new category as new features."""
    from headstart.model.inputs import as_mapping, require_mapping  # imports this module

    observations = parts.get("observations")
    answers = {} if observations is None else as_mapping(observations, f"feature {name!r}")
    answers = require_mapping(answers, f"feature {name!r}: observations", "{'u17': 'B'}")
    about = parts.get("levels")
    if about is not None:
        about = require_mapping(about, f"feature {name!r}: levels", "{'A': {'right': 1}, 'B': {'right': 0}}")
    kind = parts.get("kind")
    parsed = None if kind is None else parse_kind(kind)
    margin = parsed.margin if isinstance(parsed, Kind) else parsed
    levels = list(margin.names) if isinstance(margin, Category) else []
    if not levels:
        labels = [value_text(value) for value in answers.values()]
        levels = list(dict.fromkeys([*_shared_levels(model), *map(str, about or ()), *sorted(set(labels))]))
    unknown = [str(level) for level in about or () if str(level) not in levels]
    if unknown:
        raise InputError(f"feature {name!r}: {unknown[0]!r} is not one of its levels: {join_names(levels)}")
    if len(levels) < 2:
        raise InputError(
            f"feature {name!r}: name its levels, as in {option_name('kind', 'category:A,B,C')}; they are not "
            "known without observations"
        )
    if wrong := [level for level in levels if "=" in level]:
        raise InputError(f"feature {name!r}: the level {wrong[0]!r} has an equals sign; write it without one")
    columns = [column_name(name, level) for level in levels]
    values: dict[str, dict[Any, float]] = {column: {} for column in columns}
    for row, value in answers.items():
        for column, number in level_values(columns, value, f"feature {name!r} at {row!r}").items():
            values[column][row] = number
    described = model.schema is not None and any(column.name == LEVEL for column in model.schema.columns)
    known = _level_counts(model) if described else {}
    result = {}
    for column, level in zip(columns, levels, strict=True):
        metadata = {**({LEVEL: level} if level in known else {}), **(parts.get("metadata") or {})}
        level_metadata = (about or {}).get(level) or {}
        metadata |= require_mapping(level_metadata, f"feature {name!r}: level {level!r}", "{'right': 1}")
        extra = {key: part for key, part in parts.items() if key not in ("levels", "observations", "kind")}
        result[column] = {
            **extra, "metadata": metadata or None, "observations": values[column], "kind": Kind(Category()),
        }  # fmt: skip
    return result


def _shared_levels(model: ModelState) -> list[str]:
    """Return the levels that most categories of the model have."""
    features = len(model.feature_store.categories)
    return [level for level, count in _level_counts(model).items() if 2 * count > features]


def _level_counts(model: ModelState) -> Counter[str]:
    """Return the number of categories of the model that have each level."""
    groups = model.feature_store.categories.values()
    return Counter(split_column(column)[1] for columns in groups for column in columns)


def collapse_answers(kinds: Mapping[str, Kind], observations: Mapping[str, float]) -> dict[str, Any]:
    """Return the observations of a row with labels for numbers, and categories for columns."""
    answers: dict[str, Any] = {}
    for name, value in observations.items():
        kind = kinds[name]
        if not isinstance(kind.margin, Category):
            answers[name] = kind.margin.label(value)
        elif value == 1:
            feature, level = split_column(name)
            answers[feature] = level
    return answers


def normalise(
    names: Sequence[str],
    features: Sequence[Feature],
    probabilities: NDArray[np.float64],
    strength: float,
) -> NDArray[np.float64]:
    """Make the probabilities (rows, columns) of the levels of each category add up to 1.

    In categories of the fit, rows differ with this ``strength`` (``level_chances``).
    """
    groups: dict[str, list[int]] = {}
    for column, (name, feature) in enumerate(zip(names, features, strict=True)):
        if is_level(feature):
            groups.setdefault(split_column(name)[0], []).append(column)
    for columns in groups.values():
        part = probabilities[..., columns]
        part = part / part.sum(-1, keepdims=True)
        if strength != 1 and features[columns[0]].in_backbone:
            observed = [features[column].values for column in columns]
            counts = np.array([values.sum() for values in observed])
            part = level_chances(part, counts, len(observed[0]), strength)
            part = part / part.sum(-1, keepdims=True)
        probabilities[..., columns] = part
    return probabilities
