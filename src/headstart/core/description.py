"""Encoded metadata as linear models read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Description:
    """Encoded metadata, and which of its columns came from one metadata column: a group."""

    numbers: Tensor  # (features, columns)
    groups: list[Tensor]  # positions of columns

    @classmethod
    def of(cls, numbers: Tensor, widths: Sequence[int]) -> Description:
        """Metadata columns side by side, each as many columns wide as ``widths`` says; one if it is empty."""
        widths = widths or (numbers.shape[1],)
        return cls(numbers, list(torch.split(torch.arange(numbers.shape[1]), list(widths))))

    def bendable(self) -> Tensor:
        """A mask of the columns that may matter other than by a straight line: numbers, not labels.

        A metadata column of one or two columns is a number (the second says that it is missing).
        """
        mask = torch.zeros(self.numbers.shape[1], dtype=torch.bool)
        for group in self.groups:
            if 0 < len(group) <= 2:
                first = self.numbers[:, int(group[0])]
                mask[int(group[0])] = bool(((first * (1 - first)).abs() > 1e-6).any())
        return mask

    def with_bends(self, bends: Tensor) -> Description:
        """Return the description with the bends of the columns in this mask, each pair a group of its own."""
        width = self.numbers.shape[1]
        pairs = [torch.tensor([width + i, 2 * width + i]) for i in torch.nonzero(bends)[:, 0].tolist()]
        return Description(bent(self.numbers, bends), [*self.groups, *pairs])

    def with_more(self, more: Tensor) -> Description:
        """Return the description with a further group of columns."""
        width = self.numbers.shape[1]
        group = torch.arange(width, width + more.shape[1])
        return Description(torch.cat([self.numbers, more], 1), [*self.groups, group])


def bent(numbers: Tensor, bends: Tensor) -> Tensor:
    """Append m·(1 − m) and m·(1 − m)·(1 − 2m) of columns, zero outside the mask: (features, 3 × columns).

    A number from 0 to 1, such as a scaled year, may matter other than by a straight line.

    >>> bent(torch.tensor([[0.5, 0.2]]), torch.tensor([False, True]))
    tensor([[0.5000, 0.2000, 0.0000, 0.1600, 0.0000, 0.0960]])
    """
    bend = torch.where(bends, numbers * (1 - numbers), 0.0)
    return torch.cat([numbers, bend, bend * (1 - 2 * numbers)], dim=1)
