"""Fold new rows into a fitted peer: replace its row parameters by those of the new rows.

Peers are made for new features; for rows, the same computations are used with rows and features exchanged.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from algebra import lines_of, replaced
from methods.als import ALS
from methods.biases import Biases
from methods.protocol import Peer
from methods.vbmf import VBMF, Beliefs, _moment
from problem import Problem
from scipy.sparse import csr_matrix

FOLDABLE = (Biases, ALS, VBMF)


def known_features(peer: Peer, problem: Problem) -> Any:
    """Return the argument of ``peer.predict`` that stands for its known features."""
    if isinstance(peer, Biases):
        return peer.feature_bias
    if isinstance(peer, VBMF):
        return peer.features
    if isinstance(peer, ALS):
        # The last half round once more, since a fitted ALS keeps its rows only.
        transposed = problem.known.T.tocsr()
        centred = replaced(transposed, transposed.data - peer.centre)
        return peer._regress(centred, peer.rows, None, peer.strength, weighted=True)
    raise TypeError(f"{type(peer).__name__} cannot fold rows in")


def folded(peer: Peer, features: Any, observed: csr_matrix) -> Peer:
    """Return a copy of the peer whose rows are the lines of ``observed`` (held-out rows, known features)."""
    found = copy.copy(peer)
    lines = observed.shape[0]
    if isinstance(found, Biases):
        bias = np.zeros(lines)
        for _ in range(8 if found.binary else 1):
            bias = found._newton(
                lines_of(observed), observed.data, features[observed.indices], bias, np.zeros(lines),
                found.row_strength,
            )  # fmt: skip
        found.row_bias = bias
    elif isinstance(found, ALS):
        centred = replaced(observed, observed.data - found.centre)
        # Not by number of observations: with one, the penalty would be next to nothing.
        found.rows = found._regress(centred, features, None, found.fold, weighted=False)
    elif isinstance(found, VBMF):
        none = np.zeros((lines, found.rows.mean.shape[1]))
        spread = _moment(found.rows, np.zeros_like(found.rows.mean), None)
        beliefs = Beliefs(none, np.broadcast_to(spread, (lines, *spread.shape)))
        for _ in range(8 if found.logistic else 1):
            beliefs = found._posterior(observed, features, none, spread, beliefs)
        found.rows = beliefs
    return found
