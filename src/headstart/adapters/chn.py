"""The contextual hypernetwork of the paper (``chn``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.adapters.base import Adapter, AdapterConfig, register_adapter
from headstart.core.networks import mlp
from headstart.core.types import FeatureBatch, Heads, Knowledge, NetworkHeads, RowStates
from headstart.linalg.packed import append_one
from headstart.linalg.ragged import segment_max, segment_softmax, segment_sum
from headstart.table.cells import Cells
from headstart.table.columns import ImageShape, Structure, TokenSequence
from headstart.table.margins import VALUE_TYPES

_MAX_CACHED = 2**25  # numbers of all rows cached between calls: 128 MiB

_CONVOLUTION_WIDTH = 3  # tokens or pixels that a convolution reads in each direction

_IMAGE_CELLS = 2  # rows and columns of the image after the last pooling


class CHNConfig(AdapterConfig):
    """Sizes of the hypernetwork's layers, as in the paper's table of hyper-parameters."""

    name: Literal["chn"] = "chn"
    embedding: int = Field(50, ge=1)  # of an observation
    encoding: int = Field(50, ge=1)  # of the context
    context_layers: tuple[PositiveInt, ...] = (128,)  # hidden layers of f and of g
    metadata_encoding: int = Field(20, ge=1)
    metadata_layers: tuple[PositiveInt, ...] = (32,)
    metadata_embedding: int = Field(32, ge=1)  # of a text or an image, by a network trained with the rest
    parameter_layers: tuple[PositiveInt, ...] = (256, 256)
    aggregation: Literal["sum", "mean", "max", "attention"] = "sum"  # of the observations of a context
    attention_heads: int = Field(4, ge=1)  # of the aggregation "attention"
    max_shots: int = Field(32, ge=1)  # sums over larger contexts are scaled down to this number of shots
    head_units: int = Field(0, ge=0)  # hidden units of a head; 0: heads are linear

    @property
    def linear_heads(self) -> bool:
        """Whether heads are linear."""
        return self.head_units == 0


class ContextAttention(nn.Module):
    """Multihead dot-product attention of a feature over its context, as in attentive neural processes.

    There (Kim et al. 2019), the query is the input of a target, the keys are the inputs of the context, and
    the values are the embeddings of its observations. Keys and values are the same here: the code z of a row
    and its embedding f([z, x]). The query comes from the metadata of the feature instead of a target, because
    one head predicts all targets; without metadata, it is one learned vector. An empty context gives 0.

    Parameters
    ----------
    described : int
        The width of the encoded metadata.
    code : int
        The width of the codes.
    embedding : int
        The width of the embeddings and of the result.
    heads : int
        The number of attention heads. Each reads embedding / heads numbers, rounded up.
    """

    def __init__(self, described: int, code: int, embedding: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, -(-embedding // heads)
        width = self.heads * self.size
        self.query = nn.Linear(described + 1, width, bias=False)  # the bias is the weight of a 1
        self.key, self.value = nn.Linear(code, width), nn.Linear(embedding, width)
        self.output = nn.Linear(width, embedding, bias=False)

    def forward(self, described: Tensor, code: Tensor, embedded: Tensor, cells: Cells) -> Tensor:
        """Return the attention of each line of ``cells`` over its observations: (lines, embedding).

        ``described`` (lines, …) belongs to lines, ``code`` (n, …) and ``embedded`` (n, …) to observations.
        """
        query, key, value = (
            part.view(len(part), self.heads, self.size)
            for part in (self.query(append_one(described)), self.key(code), self.value(embedded))
        )
        scores = (query[cells.lines] * key).sum(2) / self.size**0.5  # (n, heads)
        if cells.weights is not None:
            scores = scores + cells.weights.log()[:, None]
        weighted = segment_softmax(scores, cells)[:, :, None] * value
        total: Tensor = self.output(segment_sum(weighted.flatten(1), cells.indptr))
        return total


@register_adapter
class ContextualHypernetwork(Adapter):
    """Compute θ = net([g(Σ_i f([z_i, x_i])); h(metadata)]) for each new feature in one forward pass.

    With another ``aggregation``, Σ is the mean, the largest of each number, or ``ContextAttention``. θ are
    the weights and the bias of a linear head or, with ``head_units``, the parameters of ``NetworkHeads``.
    """

    config_type: ClassVar[type[AdapterConfig]] = CHNConfig
    accepts_structures: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True
    config: CHNConfig

    def __init__(self, config: CHNConfig, knowledge: Knowledge) -> None:
        super().__init__(config, knowledge)
        code_size, width = knowledge.states.code.shape[1], knowledge.states.activation.shape[1]
        hidden = list(config.context_layers)
        self.f = mlp([code_size + 1, *hidden, config.embedding])
        self.g = mlp([config.embedding, *hidden, config.encoding])
        # In a table of several kinds, the kind of a feature is as informative as metadata.
        self.encodes_kind = len(set(knowledge.kinds.tolist())) > 1
        columns, self.reader = knowledge.metadata.shape[1], None
        if any(knowledge.structures):
            self.reader = MetadataReader(knowledge.widths, knowledge.structures, config.metadata_embedding)
            columns = self.reader.width
        columns += VALUE_TYPES * self.encodes_kind
        self.h = mlp([columns, *config.metadata_layers, config.metadata_encoding]) if columns else None
        described = config.metadata_encoding if columns else 0
        self.net = mlp([config.encoding + described, *config.parameter_layers, sum(self._sizes(width))])
        self.attention = None
        if config.aggregation == "attention":
            self.attention = ContextAttention(described, code_size, config.embedding, config.attention_heads)
        self._cache: tuple[RowStates, Tensor] | None = None  # states and their part of f's first layer

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load parameters, and clear the cache."""
        self._cache = None
        return super().load_state_dict(*arguments, **options)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze or unfreeze the parameters, and clear the cache."""
        self._cache = None
        return super().requires_grad_(requires_grad)

    @torch.no_grad()
    def prepare(self) -> None:
        """Initialise the last layer such that heads are close to the mean head.

        The hidden units of a head have random weights at first, and no effect.
        """
        heads, last = self.knowledge.heads, cast(nn.Linear, self.net[-1])
        last.weight.mul_(0.1)
        weight, bias, _, outer = torch.split(last.bias, self._sizes(heads.weight.shape[1]))
        weight.copy_(heads.weight.mean(0))
        bias.copy_(heads.bias.mean(0, keepdim=True))
        outer.zero_()

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Compute heads by one forward pass."""
        described = self._describe(batch)
        parameters = self.net(torch.cat([self.context_vector(batch, states, described), described], dim=1))
        width, units = states.activation.shape[1], self.config.head_units
        weight, bias, hidden, outer = torch.split(parameters, self._sizes(width), dim=1)
        if units == 0:
            return Heads(weight, bias[:, 0])
        return NetworkHeads(
            weight, bias[:, 0], hidden=hidden.reshape(len(batch), units, width + 1), outer=outer
        )

    def _sizes(self, width: int) -> list[int]:
        """Return the numbers of parameters of a head on activations of ``width``: of w, b, U and v."""
        units = self.config.head_units
        return [width, 1, units * (width + 1), units]

    def context_vector(self, batch: FeatureBatch, states: RowStates, described: Tensor) -> Tensor:
        """Compute c = g(Σ f([z, x])): (features, encoding).

        Attention also reads ``described`` (features, …), the encoded metadata.
        """
        cells, aggregation = batch.cells, self.config.aggregation
        shots = cells.weighted_counts.to(states.code.dtype)[:, None]
        if aggregation == "sum":
            # The sum grows with the shots, and g was trained on sums of at most `max_shots`.
            scale = self.config.max_shots / shots.clamp(min=self.config.max_shots)
            context = self._sum_of_f(batch, states, shots) * scale
        elif aggregation == "mean":
            context = self._sum_of_f(batch, states, shots) / torch.where(shots > 0, shots, 1)
        else:
            embedded = self._embed(batch, states)
            if self.attention is None:
                context = segment_max(embedded, cells)
            else:
                code = states.code.index_select(0, cells.index)
                context = self.attention(described, code, embedded, cells)
        encoded: Tensor = self.g(context)
        return encoded

    def _sum_of_f(self, batch: FeatureBatch, states: RowStates, shots: Tensor) -> Tensor:
        """Compute Σ f([z, x]) over each context: (features, embedding).

        The last layer of f is linear and therefore applied once, to the sum of its inputs.
        """
        cells, hidden = batch.cells, self._hidden_of_f(batch, states)
        linear = len(self.f) == 1  # without hidden layers
        outputs = hidden if linear else self.f[1:-1](hidden)
        if cells.weights is not None:
            outputs = outputs * cells.weights[:, None]
        total, last = segment_sum(outputs, cells.indptr), cast(nn.Linear, self.f[-1])
        return total if linear else total @ last.weight.T + shots * last.bias

    def _embed(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Compute f([z, x]) of every observation: (n, embedding)."""
        embedded: Tensor = self.f[1:](self._hidden_of_f(batch, states))
        return embedded

    def _hidden_of_f(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Compute the first layer of f at every observation, without its activation function: (n, layer)."""
        cells, first = batch.cells, cast(nn.Linear, self.f[0]).weight
        return self._first_layer(states, cells.index) + cells.values[:, None] * first[:, -1]

    def _first_layer(self, states: RowStates, rows: Tensor) -> Tensor:
        """Compute the part of f's first layer that depends on the codes of ``rows`` (n,): (n, layer).

        Once the adapter is frozen, the result of all rows is cached.
        """
        layer = cast(nn.Linear, self.f[0])
        weight = layer.weight[:, :-1]
        if self.learns or len(states) * len(weight) > _MAX_CACHED:
            return torch.addmm(layer.bias, states.code.index_select(0, rows), weight.T)
        if self._cache is None or self._cache[0] is not states:
            self._cache = (states, torch.addmm(layer.bias, states.code, weight.T))
        return self._cache[1].index_select(0, rows)

    def _describe(self, batch: FeatureBatch) -> Tensor:
        """Compute h of the metadata and perhaps of the kind: (features, encoding), or (features, 0)."""
        if self.h is None:
            return batch.metadata[:, :0]
        inputs = batch.metadata if self.reader is None else self.reader(batch.metadata)
        if self.encodes_kind:
            inputs = torch.cat([inputs, F.one_hot(batch.kinds, VALUE_TYPES).to(inputs.dtype)], dim=1)
        described: Tensor = self.h(inputs)
        return described


class TokenNetwork(nn.Module):
    """Embed tokens, convolve neighbouring ones, and take the largest of each number over the text."""

    def __init__(self, tokens: TokenSequence, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens.vocabulary, size, padding_idx=0)
        self.convolution = nn.Conv1d(size, size, _CONVOLUTION_WIDTH, padding=_CONVOLUTION_WIDTH // 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedding of ``tokens`` (features, length): (features, size); 0 without a text."""
        present = (tokens > 0)[:, None]  # (features, 1, length)
        embedded = self.embedding(tokens.long()).transpose(1, 2)
        # Numbers are not negative after the ReLU, so that 0 at the padding never is the largest of a text.
        largest: Tensor = (F.relu(self.convolution(embedded)) * present).amax(2)
        return largest


class ImageNetwork(nn.Module):
    """Convolve twice, each time followed by pooling, and map the result to the embedding of an image."""

    def __init__(self, image: ImageShape, size: int) -> None:
        super().__init__()
        self.shape = image
        self.first = nn.Conv2d(1, size // 2 or 1, _CONVOLUTION_WIDTH, padding=_CONVOLUTION_WIDTH // 2)
        self.second = nn.Conv2d(size // 2 or 1, size, _CONVOLUTION_WIDTH, padding=_CONVOLUTION_WIDTH // 2)
        self.last = nn.Linear(size * _IMAGE_CELLS**2, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the embedding of images as ``pixels`` (features, height × width): (features, size)."""
        images = pixels.view(len(pixels), 1, *self.shape)
        images = F.max_pool2d(F.relu(self.first(images)), 2, ceil_mode=True)
        images = F.adaptive_avg_pool2d(F.relu(self.second(images)), _IMAGE_CELLS)
        embedded: Tensor = F.relu(self.last(images.flatten(1)))
        return embedded


class MetadataReader(nn.Module):
    """Replace the texts and images in encoded metadata by their embeddings; pass on all other numbers.

    Parameters
    ----------
    widths : sequence of int
        The number of encoded columns of each metadata column.
    structures : sequence of Structure or None
        The structure of each metadata column; None for plain numbers.
    size : int
        The width of the embedding of a text or an image.
    """

    def __init__(self, widths: Sequence[int], structures: Sequence[Structure | None], size: int) -> None:
        super().__init__()
        self.widths = list(widths)
        self.networks = nn.ModuleDict()  # by position of the metadata column
        self.width = 0  # of the result
        for position, (width, structure) in enumerate(zip(widths, structures, strict=True)):
            if isinstance(structure, TokenSequence):
                self.networks[str(position)] = TokenNetwork(structure, size)
            elif isinstance(structure, ImageShape) and width > 0:  # a column without any image has no pixels
                self.networks[str(position)] = ImageNetwork(structure, size)
            self.width += size if str(position) in self.networks else width

    def forward(self, metadata: Tensor) -> Tensor:
        """Return the metadata (features, columns) with embeddings: (features, width)."""
        parts = torch.split(metadata, self.widths, dim=1)
        read = [
            self.networks[str(position)](part) if str(position) in self.networks else part
            for position, part in enumerate(parts)
        ]
        return torch.cat(read, dim=1)
