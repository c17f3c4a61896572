"""Heads of known features as if they were new."""

from __future__ import annotations

import numpy as np
import torch

from headstart.adapters.head_prior import empirical_noise, empirical_prior, mean_squared_weights
from headstart.core.types import Description, Heads, Knowledge
from headstart.training.episodes import Tasks


def cross_fitted_heads(knowledge: Knowledge, tasks: Tasks) -> Heads:
    """Four rounds: heads from rows that know nothing of them, then the noise that these leave."""
    some = tasks.batch.positions
    heads, by_feature = knowledge.heads.detach().take(some), tasks.batch.cells
    count = len(some)
    size = heads.weight.shape[1] + 1
    usual = float(empirical_noise(knowledge)[1])
    noise = np.full(count, usual)
    for _ in range(4):
        prior = empirical_prior(knowledge, heads, Description(torch.zeros(count, 0), []))
        precision = np.linalg.inv(prior.covariance.double().numpy())
        squares = mean_squared_weights(knowledge, heads, some).double().numpy()
        means, covariances = np.zeros((count, size)), np.zeros((count, size, size))
        variance, counts = np.zeros(count), by_feature.counts.double().numpy()
        for j in range(count):
            states = tasks.states[int(tasks.fold[j])]
            cells = by_feature.take(torch.tensor([j]))
            seen = list(zip(cells.index.tolist(), cells.values.double().tolist(), strict=True))
            total, linear = precision.copy(), precision @ prior.loo_means[j].double().numpy()
            for row, x in seen:
                d = np.r_[states.activation[row].double().numpy(), 1]
                own = noise[j] * float(states.noise[row])
                other = float(states.variance[row].double().numpy() @ squares)
                total, linear = total + np.outer(d, d) / (own + other), linear + x * d / (own + other)
            covariances[j] = np.linalg.inv(total)
            means[j] = covariances[j] @ linear
            for row, x in seen:
                d = np.r_[states.activation[row].double().numpy(), 1]
                own = noise[j] * float(states.noise[row])
                other = float(states.variance[row].double().numpy() @ squares)
                error = (x - d @ means[j]) ** 2 + d @ covariances[j] @ d
                share = own / (own + other)  # of an error that is the observation's own
                variance[j] += (share * other + share**2 * error) / float(states.noise[row]) / len(seen)
        overall = (variance * counts).sum() / counts.sum()
        noise = (5 * overall + counts * variance) / (5 + counts)
        down, across = np.tril_indices(size)
        heads = Heads(
            *(
                torch.from_numpy(part).float()
                for part in (means[:, :-1], means[:, -1], covariances[:, down, across], noise)
            )
        )
    return heads
