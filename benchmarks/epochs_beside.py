"""The references of ``epochs.py``: the usual dense versions, and the bare matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from headstart.adapters.chn import ContextualHypernetwork
from headstart.backbones.pvae import PVAE, PVAEConfig
from headstart.core.types import FeatureBatch
from headstart.table.cells import Cells
from headstart.training.episodes import draw_episode, draw_shots


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def to_dense(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return dense values and a mask of the observed cells, both (rows, features)."""
    values, mask = torch.zeros(2, len(cells), cells.width)
    values[cells.lines, cells.index], mask[cells.lines, cells.index] = cells.values, 1.0
    return values, mask


class DensePVAE(nn.Module):
    """The same model in the usual implementation: it embeds every feature of every row, then masks."""

    def __init__(self, model: PVAE) -> None:
        super().__init__()
        self.fast = model
        self.root = model.config.pooling == "root"

    def encode(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        encoder = self.fast.set_encoder
        x = values[:, :, None]
        inputs = torch.cat([x, x * encoder.embedding, encoder.bias.expand(*values.shape, 1)], dim=2)
        total = (torch.relu(encoder.layer(inputs)) * mask[:, :, None]).sum(1)
        if self.root:
            n = mask.sum(1, keepdim=True)
            total = torch.cat([total / n.clamp(min=1).sqrt(), n.log1p()], dim=1)
        mean, log_variance = self.fast.encoder(total).chunk(2, dim=1)
        return mean, log_variance

    def loss(self, values: Tensor, mask: Tensor) -> Tensor:
        kept = mask * (torch.rand_like(mask) >= torch.rand(len(mask), 1))
        mean, log_variance = self.encode(values * kept, kept)
        activation = self.fast.decoder(mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean))
        predicted = torch.sigmoid(activation @ self.fast.weight.T + self.fast.bias)
        nll = (mask * (values - predicted) ** 2).sum() / 0.2
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (nll + self.fast.config.kl_weight * kl) / len(values)


def dense_pvae_batches(cells: Cells, model: DensePVAE, batch: int, few: int) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def batches() -> None:
        for rows in torch.randperm(len(cells))[: few * batch].split(batch):
            step(optimizer, model.loss(*to_dense(cells.take(rows))))

    return batches


def dense_meta_batches(
    tasks: FeatureBatch, adapter: ContextualHypernetwork, model: DensePVAE, cells: Cells, batch: int
) -> Callable[[], None]:
    """Return one step of the usual implementation: each batch of features encodes all rows, densely."""
    optimizer = torch.optim.Adam(adapter.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)

    def states() -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(len(cells)).split(500):
            values, mask = to_dense(cells.take(rows))
            with torch.no_grad():
                mean, _ = model.encode(values, mask)
                yield mean, model.fast.decoder(mean)

    def run_step() -> None:
        part = tasks.take(torch.randperm(len(tasks))[:batch])
        episode = draw_episode(part, adapter.knowledge.states, draw_shots(part, 32, generator), generator)
        codes, activations = (torch.cat(each) for each in zip(*states(), strict=True))
        context = torch.zeros(len(part), len(cells))
        shown = torch.zeros(len(part), len(cells))
        context[episode.context.cells.lines, episode.context.cells.index] = episode.context.cells.values
        shown[episode.context.cells.lines, episode.context.cells.index] = 1.0
        summed = []
        for values, mask in zip(context.split(8), shown.split(8), strict=True):
            points = torch.cat([codes.expand(len(values), -1, -1), values[:, :, None]], dim=2)
            summed.append((adapter.f(points) * mask[:, :, None]).sum(1))
        parts = [adapter.g(torch.cat(summed))]
        if adapter.h is not None:
            parts.append(adapter.h(part.metadata))
        theta = adapter.net(torch.cat(parts, dim=1))
        predicted = torch.sigmoid(theta[:, :-1] @ activations.T + theta[:, -1:])
        truth, mask = torch.zeros_like(predicted), torch.zeros_like(predicted)
        truth[episode.targets.lines, episode.targets.index] = episode.targets.values
        mask[episode.targets.lines, episode.targets.index] = 1.0
        step(optimizer, (mask * (truth - predicted) ** 2).sum() / mask.sum())

    return run_step


def product(left: Tensor, right: Tensor) -> None:
    """Compute the three products of a linear layer: forward, and the gradients of both sides."""
    out = left @ right
    out @ right.T
    left.T @ out


def pvae_gemms(cells: Cells, config: PVAEConfig, batch: int) -> Callable[[], None]:
    size = config.set_size + (config.pooling == "root")
    layers = [(size, *config.encoder_layers, 2 * config.latent), (config.latent, *config.decoder_layers)]
    pairs = [pair for sizes in layers for pair in pairwise(sizes)]
    pairs.append((config.decoder_layers[-1], cells.width))
    weights = [torch.randn(pair) for pair in pairs]
    steps = -(-len(cells) // batch)
    inputs = [torch.randn(batch, pair[0]) for pair in pairs]

    def gemms() -> None:
        for _ in range(steps):
            for left, right in zip(inputs, weights, strict=True):
                product(left, right)

    return gemms


def meta_gemms(tasks: FeatureBatch, adapter: ContextualHypernetwork, batch: int) -> Callable[[], None]:
    rows, width = adapter.knowledge.states.activation.shape
    steps = -(-len(tasks) // batch)
    points = int(tasks.shots.clamp(max=32).float().mean() / 2 * batch)
    pairs = [(points, layer) for layer in adapter.f if isinstance(layer, nn.Linear)]
    for part in (adapter.g, adapter.h, adapter.net):
        pairs += [(batch, layer) for layer in part or [] if isinstance(layer, nn.Linear)]
    sides = [(torch.randn(n, layer.in_features), torch.randn(layer.in_features, layer.out_features))
             for n, layer in pairs]  # fmt: skip
    heads, activation = torch.randn(batch, width), torch.randn(width, rows)

    def gemms() -> None:
        for _ in range(steps):
            for left, right in sides:
                product(left, right)
            (heads @ activation) @ activation.T  # the rows are frozen and need no gradient

    return gemms
