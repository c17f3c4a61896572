"""The changes of a model as calls that a journal holds, and how they are made again.

A call names rows and features and has values in the data's own units. Those that happen often also hold what
they came to, the heads and states: to compute them again would take longer than to read them. Metadata is
in a call as it was encoded, because what encodes it need not be there when the call is made again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.errors import ModelFileError
from headstart.model.changing.journal import Call
from headstart.model.changing.observing import observed_features, rows_observed
from headstart.model.changing.outcomes import (
    heads_in,
    one_head_in,
    one_state_in,
    packed,
    packed_array,
    states_in,
    tensor_in,
)
from headstart.model.changing.population import added_rows, without_row
from headstart.model.changing.single import row_observed
from headstart.model.inputs.intake import numbers
from headstart.model.inputs.row_records import NewRows
from headstart.model.inputs.triples import Triples
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.records import as_bytes, records_from
from headstart.model.parts.staleness import Arrived
from headstart.table import Kind, MetadataSchema
from headstart.table.kinds import KindType


def adding_features(fitted: Fitted, after: Fitted, features: Sequence[Feature]) -> Call:
    """The call that adds these features, after which the model is the other one."""
    lines = [
        {
            "name": feature.name,
            "kind": [feature.kind.type.name, feature.kind.first, feature.kind.second],
            "finds_scale": feature.finds_scale,
            "metadata": feature.metadata.tolist(),
            "rows": [fitted.rows[row] for row in feature.rows],
            "values": feature.values.tolist(),
            "times": _listed(feature.times),
        }
        for feature in features
    ]
    records = _packed([feature.record or {} for feature in features], fitted.schema)
    heads = packed(after.catalogue.take([feature.name for feature in features])[1])
    return {"verb": "add_features", "features": lines, "records": records, "heads": heads}


def observing(fitted: Fitted, after: Fitted, given: Triples, side: str) -> Call:
    """The call that takes these observations, after which the model is the other one."""
    names, epoch = [feature.name for feature in given.features], after.roster.epoch
    of_features, of_rows = side != "rows", side != "features"
    sums = [after.catalogue.evidence_of(name, epoch) for name in names] if of_features else []
    return {
        "verb": "observe",
        "features": names,
        "places": given.places.tolist(),
        "rows": [fitted.rows[row] for row in given.rows],
        "values": given.values.tolist(),
        "times": _listed(given.times),
        "update": side,
        "heads": packed(after.catalogue.take(names)[1]) if of_features else None,
        "sums": [None if each is None else packed_array(each.numpy()) for each in sums],
        "states": packed(after.roster.take(np.unique(given.rows))) if of_rows else None,
        "arrived": list(after.arrived),
    }


def adding_rows(fitted: Fitted, new: NewRows) -> Call:
    """The call that adds these rows."""
    held = [numbers(observations, "row") for observations in new.given.values()]
    rows = {
        name: dict(zip(features, values.tolist(), strict=True))
        for name, (features, values) in zip(new.names, held, strict=True)
    }
    schema = None if fitted.row_metadata is None else fitted.row_metadata.schema
    return {
        "verb": "add_rows",
        "rows": rows,
        "metadata": new.encoded.tolist(),
        "records": _packed(new.records, schema),
        "teach": new.teach,
    }


def replayed(fitted: Fitted, call: Call) -> Fitted:
    """Return the model after a call, as it was when the call was made first."""
    verb = call.get("verb")
    if verb not in _AGAIN:
        raise ModelFileError(
            f"its journal has the change {verb!r}, which this version does not know; upgrade headstart"
        )
    return _AGAIN[verb](fitted, call)


def _add_features(fitted: Fitted, call: Call) -> Fitted:
    lines = call["features"]
    records = _unpacked(call["records"], len(lines))
    features = [_feature(fitted, *each) for each in zip(lines, records, strict=True)]
    return fitted.holding(features, heads_in(call["heads"]))


def _feature(fitted: Fitted, line: Call, record: Mapping[str, object]) -> Feature:
    kind, first, second = line["kind"]
    return Feature(
        line["name"],
        Kind(KindType[kind], first, second),
        False,
        len(line["rows"]),
        np.array(line["metadata"], dtype=np.float32),
        fitted.rows.positions(line["rows"]),
        np.array(line["values"], dtype=np.float64),
        line["finds_scale"],
        record,
        times=_array(line["times"]),
    )


def _observe(fitted: Fitted, call: Call) -> Fitted:
    features = [fitted.catalogue[name] for name in call["features"]]
    of = np.array([fitted.catalogue.number(name) for name in call["features"]], dtype=np.int64)
    places = np.array(call["places"], dtype=np.int64)
    values = np.array(call["values"], dtype=np.float64)
    rows = fitted.rows.positions(call["rows"])
    given = Triples(rows, features, places, of[places], values, _array(call["times"]))
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(given.times))
    if call["states"] is not None:
        fitted = rows_observed(fitted, given, lambda *_: states_in(call["states"]))
    if call["heads"] is not None:
        sums = [None if each is None else tensor_in(each) for each in call["sums"]]
        fitted = fitted.holding(observed_features(fitted, given), heads_in(call["heads"]), sums)
    return replace(fitted, arrived=Arrived(*call["arrived"]))


def _observe_one(fitted: Fitted, call: Call) -> Fitted:
    """``_observe`` of one observation, without batches: journals are full of such."""
    (name,), (value,) = call["features"], call["values"]
    feature, row = fitted.catalogue[name], fitted.rows.position(call["rows"][0])
    time = None if call["times"] is None else call["times"][0]
    head = None if call["heads"] is None else one_head_in(call["heads"])
    if feature.finds_scale or (head is None and call["heads"] is not None):
        return _observe(fitted, call)
    if fitted.clock is not None:
        fitted = replace(fitted, clock=fitted.clock.moved(_array(call["times"])))
    if call["states"] is not None:
        number = fitted.catalogue.number(name)
        fitted = row_observed(fitted, row, number, value, time, lambda _: one_state_in(call["states"]))
    if head is not None:
        (sums,) = call["sums"]
        catalogue = fitted.catalogue.put_one(
            replace(feature.with_one(row, value, time), now=fitted.now),
            head,
            None if sums is None else tensor_in(sums),
            fitted.roster.epoch,
        )
        fitted = replace(fitted, catalogue=catalogue)
    return replace(fitted, arrived=Arrived(*call["arrived"]))


def _add_rows(fitted: Fitted, call: Call) -> Fitted:
    given = call["rows"]
    encoded = np.array(call["metadata"], dtype=np.float32).reshape(len(given), -1)
    records = _unpacked(call["records"], len(given))
    return added_rows(fitted, NewRows(list(given), given, records, encoded, call["teach"]))


def _rename_feature(fitted: Fitted, call: Call) -> Fitted:
    return fitted.renamed(fitted.catalogue[call["name"]], call["to"])


def _rename_row(fitted: Fitted, call: Call) -> Fitted:
    return fitted.with_roster(fitted.roster.renamed(fitted.rows.position(call["name"]), call["to"]))


_AGAIN: dict[str, Callable[[Fitted, Call], Fitted]] = {
    "add_features": _add_features,
    "observe": lambda fitted, call: (_observe_one if len(call["values"]) == 1 else _observe)(fitted, call),
    "add_rows": _add_rows,
    "remove_feature": lambda fitted, call: fitted.without(call["name"]),
    "remove_row": lambda fitted, call: without_row(fitted, fitted.rows.position(call["name"])),
    "rename_feature": _rename_feature,
    "rename_row": _rename_row,
}


def _packed(records: Sequence[Mapping[str, object]], schema: MetadataSchema | None) -> str | None:
    """Metadata as it was given, as the saved model has it; None if the model has none."""
    if schema is None:
        return None
    content = as_bytes(records, [column.name for column in schema.columns])
    return base64.b64encode(content.numpy().tobytes()).decode()


def _unpacked(text: str | None, count: int) -> list[dict[str, object]]:
    if text is None:
        return [{} for _ in range(count)]
    content = torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.uint8).copy())
    return [record or {} for record in records_from(content, count)]


def _listed(times: NDArray[np.float64] | None) -> list[float] | None:
    return None if times is None else times.tolist()


def _array(times: list[float] | None) -> NDArray[np.float64] | None:
    return None if times is None else np.array(times, dtype=np.float64)
