"""Networks that read the texts and images of features, trained with the adapter (part of the paper's h)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.table.columns import ImageShape, Structure, TokenSequence

_KERNEL = 3  # tokens or pixels that a convolution reads in each direction

_CELLS = 2  # rows and columns of the image after the last pooling


class TokenNetwork(nn.Module):
    """Embed tokens, convolve neighbouring ones, and take the largest of each number over the text."""

    def __init__(self, tokens: TokenSequence, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens.vocabulary, size, padding_idx=0)
        self.convolution = nn.Conv1d(size, size, _KERNEL, padding=_KERNEL // 2)

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
        self.first = nn.Conv2d(1, size // 2 or 1, _KERNEL, padding=_KERNEL // 2)
        self.second = nn.Conv2d(size // 2 or 1, size, _KERNEL, padding=_KERNEL // 2)
        self.last = nn.Linear(size * _CELLS**2, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the embedding of images as ``pixels`` (features, height × width): (features, size)."""
        images = pixels.view(len(pixels), 1, *self.shape)
        images = F.max_pool2d(F.relu(self.first(images)), 2, ceil_mode=True)
        images = F.adaptive_avg_pool2d(F.relu(self.second(images)), _CELLS)
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
