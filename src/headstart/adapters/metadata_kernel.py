"""Gaussian process of heads over metadata, as further columns of their regression."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.core.types import Description
from headstart.linalg.array_ops import A, namespace

_LANDMARKS = 256  # features at which kernels are evaluated, at most

_MAX_COLUMNS = 8  # tables of more metadata columns have no kernels

_LEAST_WIDTH = 3  # of a metadata column with a kernel: numbers have splines, which extrapolate better

_LENGTH_SCALE = 0.5  # relative to the median distance of two features

_JITTER = 1e-4  # added to the kernel of a landmark with itself


class MetadataKernel(nn.Module):
    """Kernels k(x, x') = exp(-|x - x'|² / 2ℓ²) of metadata columns, one for each column.

    With landmarks L, the terms of a feature are k(x, L)·k(L, L)^-½. A ridge regression on them is a Gaussian
    process with the kernel k: exactly if all features are landmarks, projected to 256 landmarks otherwise.
    Features of similar texts or vectors then have similar heads, although no direction has the same effect
    everywhere. Numbers have none, and neither have categories: it would be that of their linear term.

    Parameters
    ----------
    metadata : Tensor of shape (features, numbers)
        The encoded metadata of known features.
    widths : tuple of int
        The width of each metadata column.
    """

    def __init__(self, metadata: Tensor, widths: tuple[int, ...]) -> None:
        super().__init__()
        groups = Description.of(metadata[:0], widths).groups
        self.owners = [position for position, group in enumerate(groups) if len(group) >= _LEAST_WIDTH]
        if len(self.owners) > _MAX_COLUMNS:
            self.owners = []
        self.spans = [(int(groups[owner][0]), int(groups[owner][-1]) + 1) for owner in self.owners]
        landmarks, kernels = min(_LANDMARKS, len(metadata)) if self.spans else 0, len(self.spans)
        self.landmarks: Tensor  # (landmarks, numbers)
        self.register_buffer("landmarks", metadata.new_zeros(landmarks, metadata.shape[1]))
        self.scales: Tensor  # (kernels,): 2ℓ² of each column; 0: the column has no kernel
        self.register_buffer("scales", metadata.new_zeros(kernels))
        self.roots: Tensor  # (kernels, landmarks, landmarks): k(L, L)^-½, used in training only
        self.register_buffer("roots", metadata.new_zeros(0, dtype=torch.float64), persistent=False)

    @property
    def width(self) -> int:
        """The number of terms, and of similarities, of a feature."""
        return len(self.spans) * len(self.landmarks)

    def groups(self, start: int) -> tuple[list[Tensor], list[int]]:
        """Return the positions of the terms of each kernel from ``start`` on, and its metadata column.

        Only the kernels of columns that can have one are returned.
        """
        positions = torch.arange(start, start + self.width).view(len(self.spans), len(self.landmarks))
        used = torch.nonzero(self.scales)[:, 0].tolist()
        return [positions[kernel] for kernel in used], [self.owners[kernel] for kernel in used]

    @torch.no_grad()
    def prepare(self, metadata: Tensor) -> None:
        """Choose landmarks and length scales from the metadata (features, numbers) of known features."""
        count = len(self.landmarks)
        self.roots = self.roots.new_zeros(len(self.spans), count, count)
        if not count:
            return
        self.landmarks.copy_(metadata[torch.arange(count, device=metadata.device) * len(metadata) // count])
        for kernel, (start, end) in enumerate(self.spans):
            part = self.landmarks[:, start:end].double()
            squared = torch.cdist(part, part) ** 2
            distances = squared[squared > 1e-9]
            if not len(distances) or float(distances.max() - distances.min()) < 1e-6:
                continue  # a category: two features are equal, or at the one distance
            self.scales[kernel] = 2 * _LENGTH_SCALE**2 * distances.median()
            values, vectors = torch.linalg.eigh(torch.exp(-squared / float(self.scales[kernel])))
            self.roots[kernel] = vectors / (values.clamp(min=0) + _JITTER).sqrt() @ vectors.T

    def similarities(self, metadata: A) -> A:
        """Return k(x, L) of features with the ``metadata`` (…, numbers): (…, kernels × landmarks)."""
        xp = namespace(metadata)
        if not self.spans:
            return metadata[..., :0]
        landmarks = self.landmarks if isinstance(metadata, Tensor) else self.landmarks.numpy()
        none = xp.zeros_like(metadata[..., :1] @ landmarks[:, :1].T)
        parts = []
        for (start, end), scale in zip(self.spans, self.scales.tolist(), strict=True):
            if scale == 0:
                parts.append(none)
                continue
            part, centre = metadata[..., start:end], landmarks[:, start:end]
            squared = (part**2).sum(-1)[..., None] + (centre**2).sum(-1) - 2 * part @ centre.T
            parts.append(xp.exp(-squared.clip(0) / scale))
        return xp.concatenate(parts, -1)  # type: ignore[no-any-return]

    def terms(self, metadata: Tensor) -> Tensor:
        """Return k(x, L)·k(L, L)^-½ of features: (features, kernels × landmarks)."""
        similarities = self.similarities(metadata).double()
        blocks = similarities.view(len(metadata), len(self.spans), len(self.landmarks))
        return torch.einsum("fkl,klm->fkm", blocks, self.roots).flatten(1)

    @torch.no_grad()
    def use(self, coefficients: Tensor) -> Tensor:
        """Return the coefficients of similarities, given those of terms: (kernels × landmarks, size) both.

        Kernels whose coefficients are 0 are not computed any more.
        """
        blocks = coefficients.double().view(len(self.spans), len(self.landmarks), coefficients.shape[1])
        self.scales *= blocks.flatten(1).any(1)
        return (self.roots @ blocks).flatten(0, 1)
