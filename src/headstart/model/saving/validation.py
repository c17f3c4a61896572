"""Check that the facts and tensors of a saved model agree before it is assembled.

A damaged or malicious file must raise an error; it must not crash the process or exhaust its memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headstart.core.networks import loading
from headstart.errors import InputError, join_names
from headstart.linalg.packed import packed_size
from headstart.model.saving.format import Groups, context_values
from headstart.table import Kinds
from headstart.table.kinds import LARGEST, KindType
from headstart.table.margins import VALUE_TYPES
from headstart.training.calibration import LEVELS

if TYPE_CHECKING:
    from headstart.core.types import Knowledge, RowStates
    from headstart.model.saving.format import ModelFacts


Module = TypeVar("Module", bound=nn.Module)

_INT, _SINGLE, _DOUBLE = torch.int64, torch.float32, torch.float64

# The possible types and the number of dimensions of a tensor.
Form = tuple[torch.dtype | tuple[torch.dtype, ...], int]

# Stored in the shortest type that suffices.
_POSITIONS, _VALUES = (torch.int32, _INT), (torch.uint8, _SINGLE, _DOUBLE)

_STATES: dict[str, Form] = {
    "code": (_SINGLE, 2), "code_std": (_SINGLE, 2), "activation": (_SINGLE, 2), "noise": (_SINGLE, 1),
    "variance": (_SINGLE, 2), "exposure": (_SINGLE, 1),
}  # fmt: skip

_HEADS: dict[str, Form] = {
    "weight": (_SINGLE, 2),
    "bias": (_SINGLE, 1),
    "covariance": (_SINGLE, 2),
    "noise": (_SINGLE, 1),
}

# The type and the number of dimensions of each tensor, except those of the backbone and the adapter.
_FORMS: dict[str, dict[str, Form]] = {
    "features": {**_HEADS, "metadata": (_SINGLE, 2)},
    "covariances": {
        "bases": (_SINGLE, 2), "shares": (_SINGLE, 2), "vectors": (torch.float16, 2), "scales": (_SINGLE, 1),
        "ends": (_INT, 1), "halves": (torch.float16, 2), "units": (_SINGLE, 1), "dense": (_SINGLE, 2),
        "where": (_INT, 1),
    },
    "contexts": {"counts": (_INT, 1), "rows": (_POSITIONS, 1), "values": (_VALUES, 1), "arrivals": (_INT, 1),
                 "levels": (_DOUBLE, 1)},
    "feature_references": {**_HEADS, "features": (_INT, 1), "kinds": (_DOUBLE, 2)},
    "knowledge": {"metadata": (_SINGLE, 2), "indptr": (_INT, 1), "index": (torch.int32, 1),
                  "values": ((torch.uint8, _SINGLE), 1), "levels": (_SINGLE, 1), "kinds": (_INT, 1)},
    "knowledge/heads": _HEADS,
    "knowledge/states": _STATES,
    "knowledge/scales": {"centre": (_DOUBLE, 1), "scale": (_DOUBLE, 1)},
    "states": _STATES,
    "calibration": {"marks": (_INT, 1), "factors": (_SINGLE, 3), "slopes": (_SINGLE, 1),
                    "shifts": (_SINGLE, 1), "click_slopes": (_SINGLE, 1), "click_shifts": (_SINGLE, 1),
                    "click_least": (_SINGLE, 1), "edge": (_SINGLE, 1), "level_strength": (_SINGLE, 1),
                    "known_factors": (_SINGLE, 2)},
    "backbone_grid": {"": (_SINGLE, 1)},
    "records": {"": (torch.uint8, 1)},
    "rows": {"metadata": (_SINGLE, 2), "records": (torch.uint8, 1)},
    "row_prior": {"matrix": (_SINGLE, 2), "constant": (_SINGLE, 1), "covariance": (_SINGLE, 2),
                  "nonlinear": (torch.bool, 1), "gains": (_SINGLE, 1)},
    "row_observations": {"rows": (_INT, 1), "counts": (_INT, 1), "features": (_INT, 1),
                         "values": (_DOUBLE, 1), "arrivals": (_INT, 1), "times": (_DOUBLE, 1),
                         "weights": (_DOUBLE, 1)},
    "row_references": _STATES,
    "row_fitted_states": _STATES,
    "times": {"table": (_DOUBLE, 1), "contexts": (_DOUBLE, 1)},
    "observation_weights": {"table": (_DOUBLE, 1), "contexts": (_DOUBLE, 1)},
    "observation_values": {"table": (_DOUBLE, 1)},
    "not_applicable": {"cells": (torch.int32, 2)},
    "known_weights": {"indptr": (_INT, 1), "indices": (torch.int32, 1), "data": (_SINGLE, 1)},
}  # fmt: skip

_OPTIONAL = {"covariance", "levels", "noise", "variance", "exposure", "times", "weights"}

_OPTIONAL_GROUPS = {
    "covariances", "knowledge/scales", "feature_references", "row_observations", "row_references",
    "row_fitted_states",
    "records", "rows", "row_prior", "times", "observation_weights",
    "observation_values", "not_applicable", "known_weights",
}  # fmt: skip

_OF_PARTS = ("backbone", "adapter")

_BLOCK = 2**22  # numbers checked at a time

_NOT_NEGATIVE = ("code_std", "noise", "variance", "exposure")


def check_tensors(groups: Groups) -> None:
    """Refuse tensors that are missing, unknown, of a wrong type or dimension, or not finite."""
    for group, tensors in groups.items():
        if group not in _FORMS and group not in _OF_PARTS:
            raise InputError(f"it has tensors of no known part: {group!r}")
        for name, tensor in tensors.items():
            full = f"{group}/{name}" if name else group
            if group in _FORMS:
                _check_form(full, tensor, _FORMS[group].get(name))
            if not _is_finite(tensor):
                raise InputError(f"its tensor {full!r} has numbers that are not finite")
            if (
                name in _NOT_NEGATIVE
                and group not in _OF_PARTS
                and tensor.numel()
                and float(tensor.min()) < 0
            ):
                raise InputError(f"its tensor {full!r} has negative numbers")
    for name, copy in (
        ("kinds", groups["knowledge"].get("kinds")),
        ("grid", groups["backbone_grid"].get("")),
    ):
        original = groups["backbone"].get(name)
        if original is not None and (copy is None or not torch.equal(original, copy)):
            raise InputError(f"its {name} are not those of its backbone")
    for group, forms in _FORMS.items():
        if group in groups or group not in _OPTIONAL_GROUPS:
            missing = set(forms) - _OPTIONAL - set(groups.get(group, {}))
            if missing:
                raise InputError(f"its tensors {join_names(sorted(missing))} of {group!r} are missing")
    if not all(_codes_agree(groups[group]) for group in ("contexts", "knowledge")):
        raise InputError("the codes of its values are not those of its levels")


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite; in blocks, because the tensor may be larger than the memory."""
    blocks = torch.split(tensor.reshape(-1), _BLOCK) if tensor.is_floating_point() else ()
    # A finite sum has finite terms, and takes a fifth of the time of testing each; a sum can overflow.
    return all(math.isfinite(block.sum()) or bool(block.isfinite().all()) for block in blocks)


def _check_form(name: str, tensor: Tensor, form: Form | None) -> None:
    if form is None:
        raise InputError(f"it has a tensor {name!r} of no known part")
    types = form[0] if isinstance(form[0], tuple) else (form[0],)
    if tensor.dtype not in types or tensor.ndim != form[1]:
        actual = f"{tensor.dtype} of {tensor.ndim} dimensions"
        raise InputError(f"its tensor {name!r} is {actual}, not {join_names(types)} of {form[1]}")


def check_counts(facts: ModelFacts, knowledge: Knowledge, states: RowStates, groups: Groups) -> None:
    """Refuse a model whose names, counts and tensors do not agree."""
    _check_names(facts)
    cells, heads = knowledge.cells, groups["features"]
    features, rows = len(facts.features.names), len(facts.rows)
    width = sum(column.width for column in facts.metadata.columns) if facts.metadata else 0
    agree = {
        "rows": all(len(part) == rows for part in states.parts())
        and all(len(part) == len(cells) for part in knowledge.states.parts())
        and len(cells) <= rows,
        "features": all(len(part) == features for part in heads.values()),
        "features of the backbone": all(
            len(part) == len(facts.backbone_features)
            for part in (*knowledge.heads.parts(), knowledge.metadata, knowledge.kinds)
        )
        and bool(((knowledge.kinds >= 0) & (knowledge.kinds < len(KindType))).all()),
        "activations": _width(heads["weight"]) == _width(states.activation)
        and (
            "covariance" not in heads
            or _width(heads["covariance"]) == packed_size(_width(heads["weight"]) + 1)
        ),
        "covariances": "covariances" not in groups
        or _covariances_agree(groups["covariances"], features, _width(heads["weight"]) + 1),
        "metadata": _width(heads["metadata"]) == _width(knowledge.metadata) == width
        and ("records" in groups) == (facts.metadata is not None),
        "observations": _within(cells.index, cells.width)
        and _ascends(cells.indptr)
        and int(cells.indptr[-1]) == len(cells.values) == len(cells.index),
        "references": _references_agree(groups, features, heads),
        "observations of rows": _row_observations_agree(
            groups.get("row_observations"), len(cells), len(states), features
        ),
        "weights of known features": _known_weights_agree(groups.get("known_weights"), cells.width),
        "calibration": _calibrates(groups["calibration"]),
        "judgement": facts.judgement is None or _judges(facts.judgement),
    }
    wrong = [part for part, agrees in agree.items() if not agrees]
    wrong += [] if _contexts_agree(facts, groups["contexts"], rows) else ["contexts"]
    if wrong:
        raise InputError(f"its {join_names(wrong)} do not agree with the weights")
    if not facts.kinds or not {"backbone", "adapter"} <= set(facts.packages):
        raise InputError("it does not say its kinds, or where its parts come from")


def _check_names(facts: ModelFacts) -> None:
    """Refuse names that occur twice."""
    for noun, names in (
        ("row", facts.rows),
        ("feature", facts.features.names),
        ("feature", facts.backbone_features),
    ):
        name, count = next(iter(Counter(names).most_common(1)), ("", 0))
        if count > 1:
            raise InputError(f"{noun} {name!r} is there twice")


def _row_observations_agree(
    observations: dict[str, Tensor] | None, fitted_rows: int, rows: int, features: int
) -> bool:
    """Return whether saved observations of rows are valid.

    All rows and features must exist; rows, and the features of each row, must be distinct and ascending. All
    rows after the first ``fitted_rows``, which are those of the fitted table, must be among them.
    """
    if observations is None:
        return rows == fitted_rows
    if len(observations["counts"]) != len(observations["rows"]) or bool((observations["counts"] < 0).any()):
        return False
    lines = torch.repeat_interleave(observations["rows"], observations["counts"])
    within = all(
        bool(((observations[name] >= 0) & (observations[name] < limit)).all())
        for name, limit in (("rows", rows), ("features", features))
    )
    if not within or not len(lines) == len(observations["features"]) == len(observations["values"]):
        return False
    if int((observations["rows"] >= fitted_rows).sum()) != rows - fitted_rows:
        return False
    if any(len(observations.get(name, lines)) != len(lines) for name in ("arrivals", "times", "weights")):
        return False
    keys = lines * max(1, features) + observations["features"]
    return all(bool((numbers.diff() > 0).all()) for numbers in (observations["rows"], keys))


def _references_agree(groups: Groups, features: int, heads: dict[str, Tensor]) -> bool:
    """Return whether references belong to known rows and features, and have the parts of current values."""
    references = groups.get("feature_references")
    if references is not None:
        positions = references["features"]
        parts = {name: part for name, part in heads.items() if name != "metadata"}
        if "covariances" in groups:
            parts["covariance"] = groups["covariances"]["dense"]
        if (
            not _within(positions, features)
            or not bool((positions.diff() > 0).all())
            or references["kinds"].shape != (len(positions), 2)
            or references.keys() - {"features", "kinds"} != parts.keys()
            or any(
                references[name].shape != (len(positions), *part.shape[1:]) for name, part in parts.items()
            )
        ):
            return False
    rows = groups.get("row_observations", {}).get("rows")
    for name in ("row_references", "row_fitted_states"):
        states = groups.get(name)
        if (states is None) != (rows is None):
            return False
        if states is not None and rows is not None:
            shapes = {part: (len(rows), *current.shape[1:]) for part, current in groups["states"].items()}
            if {part: tuple(tensor.shape) for part, tensor in states.items()} != shapes:
                return False
    return True


def _covariances_agree(parts: dict[str, Tensor], features: int, size: int) -> bool:
    """Return whether the parts of compact covariances of heads of ``size`` parameters have valid shapes."""
    factored, vectors, ends = len(parts["shares"]), len(parts["vectors"]), parts["ends"]
    rest = features - factored - len(parts["halves"])
    shapes = {
        "bases": (len(parts["bases"]), packed_size(size)),
        "shares": (factored, len(parts["bases"])),
        "vectors": (vectors, size),
        "scales": (vectors,),
        "ends": (factored + 1,),
        "halves": (len(parts["halves"]), packed_size(size)),
        "units": (len(parts["halves"]),),
        "dense": (rest, packed_size(size)),
        "where": (features,),
    }
    return (
        all(parts[name].shape == shape for name, shape in shapes.items())
        and _ascends(ends)
        and int(ends[-1]) == vectors
        and torch.equal(parts["where"].sort().values, torch.arange(features))
    )


def _contexts_agree(facts: ModelFacts, contexts: dict[str, Tensor], rows: int) -> bool:
    """Return whether contexts have valid values, known rows without duplicates, and the features' shots."""
    counts, index = contexts["counts"], contexts["rows"]
    shots = torch.tensor(facts.features.shots, dtype=torch.int64)
    if (
        len(counts) != len(shots)
        or bool((counts < 0).any())
        or not int(counts.sum()) == len(index) == len(contexts["values"])
        or len(facts.features.observed_since) != len(counts)
        or int(counts[torch.tensor(facts.features.observed_since, dtype=torch.bool)].sum())
        != len(contexts["arrivals"])
        or not bool(((counts == 0) | (counts == shots)).all())
        or not _within(index, rows)
    ):
        return False
    kinds = Kinds.parse(facts.features.kinds)
    known = set(facts.backbone_features)
    if len(kinds) != len(counts) or not all(
        name in known or not inside
        for name, inside in zip(facts.features.names, facts.features.in_backbone, strict=True)
    ):
        return False
    ends = torch.cumsum(counts, 0)
    first = start = 0
    while first < len(counts):  # features whose contexts fit in a block, but at least one
        last = max(first + 1, int(torch.searchsorted(ends, start + _BLOCK, right=True)))
        end = int(ends[last - 1])
        line = torch.repeat_interleave(torch.arange(first, last), counts[first:last])
        values = torch.from_numpy(context_values(contexts, slice(start, end)))
        if not _values_agree(kinds, line, index[start:end], values):
            return False
        first, start = last, end
    return True


def _codes_agree(tensors: dict[str, Tensor]) -> bool:
    """Return whether codes of values are positions of levels, and other values have no levels."""
    values, levels = tensors["values"], tensors.get("levels")
    if levels is None or values.dtype != torch.uint8:
        return levels is None and values.dtype != torch.uint8
    return not len(values) or int(values.max()) < len(levels)


def _values_agree(kinds: Kinds, line: Tensor, rows: Tensor, values: Tensor) -> bool:
    """Return whether the rows of each context ascend, and its numbers are possible; ``line`` are features."""
    if bool(((line.diff() == 0) & (rows.diff() <= 0)).any()):
        return False
    numbers, features = values.numpy(), line.numpy()
    in_range = np.abs(kinds.scale_numbers(numbers, features)) <= LARGEST
    impossible = kinds.impossible(kinds.values(numbers, features), features)
    return bool(in_range.all()) and not bool(impossible.any())


def _calibrates(tensors: dict[str, Tensor]) -> bool:
    """Return whether the tensors of the calibration have valid shapes and values."""
    marks, factors = tensors["marks"], tensors["factors"]
    terms = ("slopes", "shifts", "click_slopes", "click_shifts", "click_least")
    sizes = {len(marks), factors.shape[1], *(len(tensors[name]) for name in terms)}
    shapes_agree = len(sizes) == 1 and factors.shape[::2] == (VALUE_TYPES, len(LEVELS)) and len(marks) > 0
    shapes_agree &= len(tensors["level_strength"]) == 1 and bool((tensors["level_strength"] >= 0).all())
    shapes_agree &= len(tensors["edge"]) == 1
    known = tensors["known_factors"]
    shapes_agree &= known.shape == (VALUE_TYPES, len(LEVELS))
    positive = all(
        bool((part > 0).all()) for part in (factors, tensors["click_least"], tensors["edge"], known)
    )
    return shapes_agree and _ascends(marks - marks[0]) and bool((marks >= 0).all()) and positive


def _judges(judgement: Any) -> bool:
    """Return whether a judgement has the scores of its chosen adapter, and of the means if there are any."""
    chosen, shots = judgement.candidates.get(judgement.chosen), len(judgement.shots)

    def complete(verdict: Any) -> bool:
        return len(verdict.error) == len(verdict.standard_error) == shots

    judged = chosen is not None and complete(chosen)
    return (judged or not judgement.candidates) and (judgement.means is None or complete(judgement.means))


def _within(index: Tensor, limit: int) -> bool:
    return len(index) == 0 or (int(index.min()) >= 0 and int(index.max()) < limit)


def _ascends(numbers: Tensor) -> bool:
    """Return whether numbers start with 0 and never decrease."""
    return len(numbers) > 0 and int(numbers[0]) == 0 and bool((numbers.diff() >= 0).all())


def _known_weights_agree(weights: dict[str, Tensor] | None, features: int) -> bool:
    """Return whether the weights of local parts are a sparse matrix (features, features), or missing."""
    if weights is None:
        return True
    indptr, indices, data = (weights[name] for name in ("indptr", "indices", "data"))
    return (
        len(indptr) == features + 1
        and _ascends(indptr)
        and int(indptr[-1]) == len(indices) == len(data)
        and _within(indices, features)
    )


def _width(tensor: Tensor) -> int:
    return int(tensor.shape[1])


def build_module(build: Callable[[], Module], tensors: dict[str, Tensor], size: int) -> Module:
    """Build a backbone or an adapter, and check that ``tensors`` have the types of its state.

    A module whose state is in a file of ``size`` numbers does not need to allocate much more than these.
    """
    with _BoundedAllocation(max(_ALWAYS_ALLOWED, 4 * size)), loading():
        module = build()
    state = module.state_dict()
    for name in tensors.keys() & state.keys():
        actual, expected = tensors[name].dtype, state[name].dtype
        if actual != expected:
            raise InputError(f"its tensor {name!r} is {actual}, not {expected}")
    return module


class _BoundedAllocation(TorchFunctionMode):
    """A context that refuses to allocate tensors of more than ``limit`` numbers.

    Without it, the settings of a damaged file could demand any size.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func in _ALLOCATING:
            sizes = _integers([args, keywords.get("size", ())])
            square = func is torch.eye and len(sizes) == 1
            if math.prod(sizes) ** (2 if square else 1) > self.limit:
                raise InputError(f"its settings ask for a tensor of the sizes {join_names(sizes)}")
        return func(*args, **keywords)


_ALLOCATING = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye,
               torch.arange, torch.tril_indices}  # fmt: skip

_ALWAYS_ALLOWED = 2**24  # numbers


def _integers(arguments: Any) -> list[int]:
    """Return all integers in nested tuples and lists."""
    if isinstance(arguments, int):
        return [arguments]
    return [n for item in arguments for n in _integers(item)] if isinstance(arguments, (tuple, list)) else []
