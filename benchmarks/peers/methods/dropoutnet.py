"""A content model in the manner of DropoutNet: a network from metadata and context to a feature's factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from algebra import lines_of, replaced
from problem import Context, Floats, Ints, Problem
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds
from torch import Tensor, nn

from methods.biases import Biases
from methods.protocol import Peer


@dataclass
class DropoutNet(Peer):
    """Biases plus a product of row factors with factors that a network makes (Volkovs et al., 2017).

    The row factors are a truncated singular value decomposition of residuals. The network reads the metadata,
    the mean of the context's row factors times its residuals, and the size of the context. In training,
    all but a random number of the observations of each known feature are dropped, often all of them.
    """

    factors: int = 16
    hidden: int = 64
    epochs: int = 60
    rate: float = 3e-3
    decay: float = 1e-4
    seed: int = 0

    choices: ClassVar = {"factors": (8, 16, 32), "epochs": (30, 60, 120), "decay": (1e-4, 1e-2)}

    def fit(self, problem: Problem) -> None:
        self.biases = Biases(popularity=0.75)
        self.biases.fit(problem)
        known = problem.known
        total = self.biases.row_bias[lines_of(known)] + self.biases.feature_bias[known.indices]
        residuals = replaced(known, known.data - self.biases.link(total))
        size = min(self.factors, *(length - 1 for length in known.shape))
        left, scale, _ = svds(residuals, k=size, random_state=self.seed)
        self.rows = torch.from_numpy(np.ascontiguousarray(left * scale)).float()
        self.rows = self.rows / self.rows.std().clamp(min=1e-6)
        self._centre, self._scale = problem.metadata_known.mean(0), problem.metadata_known.std(0) + 1e-6
        torch.manual_seed(self.seed)
        width = problem.metadata_known.shape[1] + size + 1
        self.network = nn.Sequential(
            nn.Linear(width, self.hidden), nn.Tanh(), nn.Linear(self.hidden, size + 1)
        )
        self._train(residuals.tocsc(), problem.metadata_known)

    def adapt(self, context: Context) -> tuple[Floats, Floats]:
        bias = self.biases.adapt(context)
        total = self.biases.row_bias[context.row] + bias[context.feature]
        inputs = context.matrix(context.value - self.biases.link(total))
        with torch.no_grad():
            heads = self.network(self._inputs(inputs, context.metadata)).numpy()
        return bias, heads

    def predict(self, adapted: tuple[Floats, Floats], feature: Ints, row: Ints) -> Floats:
        bias, heads = adapted
        shift = (self.rows.numpy()[row] * heads[feature, :-1]).sum(1) + heads[feature, -1]
        mean = self.biases.link(self.biases.row_bias[row] + bias[feature]) + shift
        low, high = self.biases.low, self.biases.high
        return np.clip(mean, 1e-3, 1 - 1e-3) if self.biases.binary else np.clip(mean, low, high)

    def _inputs(self, residuals: csr_matrix, metadata: Floats) -> Tensor:
        """Return the inputs of the network for features × rows of ``residuals``: (features, width)."""
        counts = np.diff(residuals.indptr)[:, None]
        summary = (residuals @ self.rows.numpy()) / (counts + 5)
        scaled = (metadata - self._centre) / self._scale
        return torch.from_numpy(np.concatenate([scaled, summary, np.log1p(counts)], axis=1)).float()

    def _train(self, columns: csr_matrix, metadata: Floats) -> None:
        generator = np.random.default_rng(self.seed)
        feature = torch.from_numpy(np.repeat(np.arange(columns.shape[1]), np.diff(columns.indptr)))
        row, goal = torch.from_numpy(columns.indices.astype(np.int64)), torch.from_numpy(columns.data).float()
        optimiser = torch.optim.Adam(self.network.parameters(), lr=self.rate, weight_decay=self.decay)
        for _ in range(self.epochs):
            # Each feature keeps about 0, 1, 2, 4 … 128 of its observations; the others are targets.
            shots = generator.choice([0, 0, 1, 2, 4, 8, 16, 32, 64, 128], size=columns.shape[1])
            share = shots / np.maximum(np.diff(columns.indptr), 1)
            seen = generator.random(columns.nnz) < np.minimum(share, 0.8)[feature.numpy()]
            kept = csr_matrix(
                (columns.data[seen], (feature.numpy()[seen], columns.indices[seen])),
                shape=columns.shape[::-1],
            )
            heads = self.network(self._inputs(kept, metadata))
            hidden = torch.from_numpy(~seen)
            at = feature[hidden]
            predicted = (self.rows[row[hidden]] * heads[at, :-1]).sum(1) + heads[at, -1]
            loss = ((predicted - goal[hidden]) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
