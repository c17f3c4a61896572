"""The methods by name, one class per file. The library of a peer is imported when it is first fitted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from methods.als import ALS
from methods.biases import Biases
from methods.dropoutnet import DropoutNet
from methods.ease import EASE
from methods.headstart_methods import SETTINGS, HeadstartPeer, HeadstartRetrained
from methods.implicit_als import ImplicitALS
from methods.imputers import MICE, Imputer
from methods.irt import ItemResponse
from methods.item_knn import ItemKNN
from methods.lightfm import LightFM
from methods.lightgbm import LightGBM
from methods.myfm import MyFM
from methods.protocol import Peer
from methods.retrained import VBMFRetrained
from methods.tabular import TabICL, TabPFN
from methods.vbmf import VBMF

# Only run if they are named: they need small tables, or weights that must be downloaded.
UNUSUAL: dict[str, Callable[[], Peer]] = {
    "iterative-imputer": Imputer,
    "mice-like": MICE,
    "tabpfn": TabPFN,
    "tabicl": TabICL,
}

# In the order they are run: the quick ones first.
METHODS: dict[str, Callable[[], Peer]] = {
    "biases": Biases,
    "als": ALS,
    "item-knn": ItemKNN,
    "ease": EASE,
    "vbmf": VBMF,
    "irt": ItemResponse,
    "dropoutnet": DropoutNet,
    "implicit-als": ImplicitALS,
    "lightfm": LightFM,
    "lightgbm": LightGBM,
    **{name: partial(HeadstartPeer, given=given) for name, given in SETTINGS.items()},
    "vbmf-retrained": VBMFRetrained,
    "headstart-retrained": HeadstartRetrained,
    "myfm": MyFM,
    **UNUSUAL,
}

__all__ = ["METHODS", "UNUSUAL", "Peer"]
