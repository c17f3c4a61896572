"""Making sure that a held-out feature's scale tells nothing of its values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.table import Kind, Kinds, Table
from headstart.table.inference import resolve_kinds
from headstart.table.kinds import KindType


def hide_scales(table: Table, known_features: NDArray[np.int64]) -> Table:
    """Return the table with the centers and scales of its reals found anew, from train features alone.

    Reading a table finds them from all values. A method told the center of a new feature would then
    know its mean at zero shots; so a held-out real gets the scale that the train reals share or, where
    each of those has its own, the one in their middle.
    """
    real = table.kinds.types == KindType.REAL
    if not real.any():
        return table
    trained = np.zeros(len(real), dtype=bool)
    trained[known_features] = True
    known = table.with_features(real & trained)
    kinds = np.array(table.kinds, dtype=object)
    if len(known):
        found, _ = resolve_kinds("real", known.features, known.feature_index, known.values)
        kinds[real & trained] = found
        common = found.middle_real() or found[0]
    else:
        common = Kind.real()
    kinds[real & ~trained] = common
    return replace(table, kinds=Kinds(kinds))
