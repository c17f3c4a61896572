"""How curves are drawn: colours, markers and dashes, on a light or a dark background."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# The colours of Okabe and Ito, which colour-blind readers can distinguish, and a grey. Their yellow is
# too pale on white, so a dark red replaces it there. Methods also differ in marker and dashes.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
_DASHES = ((), (4, 1.2), (1.2, 1.2), (5, 1.2, 1.2, 1.2), (8, 2), (3, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Theme:
    """The colours of a picture apart from those of the methods."""

    paper: str
    ink: str
    faint: str
    extra: str  # one more colour for lines


LIGHT = Theme("#ffffff", "#222222", "#dddddd", "#882255")
DARK = Theme("#16181c", "#e6e6e6", "#3a3d44", "#F0E442")


@dataclass(frozen=True)
class Style:
    """How the curve of one method is drawn."""

    colour: str
    marker: str
    dashes: tuple[float, ...]

    def line(self, theme: Theme) -> dict[str, Any]:
        """Return the arguments of ``Axes.plot`` that draw in this style."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": 5,
            "markeredgecolor": theme.paper,
            "markeredgewidth": 0.4,
            "linewidth": 1.6,
            "dashes": self.dashes or (None, None),
        }


def styles_of(methods: Sequence[str], theme: Theme) -> dict[str, Style]:
    """Return a style per method; knn-1 and knn-5 differ only in a number, so they share colour and marker."""
    families: dict[str, list[str]] = {}
    for method in methods:
        families.setdefault(re.sub(r"-\d+$", "", method), []).append(method)
    colours = (*_COLOURS, theme.extra, theme.ink)
    return {
        method: Style(colours[i % len(colours)], _MARKERS[i % len(_MARKERS)], _DASHES[j % len(_DASHES)])
        for i, members in enumerate(families.values())
        for j, method in enumerate(members)
    }
