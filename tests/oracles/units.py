"""Units of features that find their scale."""

from __future__ import annotations

import numpy as np

from headstart.table import Kind


def unit_of(values: np.ndarray, middle: Kind) -> Kind:
    """The same of one feature, step by step."""
    center, spread = float(values.mean()), float(values.std())
    if len(values) >= 4 and spread > 0:
        center = float(np.median(values))
        distance = np.abs(values - center)
        spread = max(float(np.median(distance)), 1e-15 * float(distance.max()))
    unknown = max(abs(center), 1e-6 * middle.span) if center else middle.span
    scale = spread if spread > 1e-12 * abs(center) else unknown
    return Kind.real(center, scale)
