"""The methods by name: five references, and Headstart."""

from __future__ import annotations

from collections.abc import Callable

from methods.als import ALS
from methods.biases import Biases
from methods.item_knn import ItemKNN
from methods.lightgbm import LightGBM
from methods.vbmf import VBMF

from generality.methods.own import HeadstartMethod
from generality.methods.protocol import LEVELS, Method, Said
from generality.methods.reference import Reference

METHODS: dict[str, Callable[[], Method]] = {
    "biases": lambda: Reference(Biases()),
    "als": lambda: Reference(ALS()),
    "item-knn": lambda: Reference(ItemKNN()),
    "vbmf": lambda: Reference(VBMF()),
    "lightgbm": lambda: Reference(LightGBM(cells=8000, trees=200)),
    "headstart": HeadstartMethod,
    "headstart-told-scales": lambda: HeadstartMethod(tell_scales=True),
}
REFERENCES = tuple(name for name in METHODS if not name.startswith("headstart"))
LIBRARIES = {"lightgbm": "lightgbm"}  # beyond Headstart's own requirements

__all__ = ["LEVELS", "LIBRARIES", "METHODS", "REFERENCES", "HeadstartMethod", "Method", "Reference", "Said"]
