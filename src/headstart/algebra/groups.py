"""Groups of columns that a regression gives one strength each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headstart.crew import crew

MAX_COLUMNS = 256  # of one group; wider groups are reduced to their leading directions


@dataclass(frozen=True)
class Group:
    """Columns that share one strength: centred, scaled to mean square length 1, reduced where wide."""

    columns: Tensor  # (columns,): positions in the encoded metadata
    centre: Tensor  # (columns,)
    basis: Tensor  # (columns, reduced): from centred columns to those that the regression reads

    @property
    def width(self) -> int:
        """How many columns the regression reads."""
        return int(self.basis.shape[1])

    def of(self, columns: Tensor) -> Group:
        """The same group at other positions."""
        return replace(self, columns=columns)

    def read(self, encoded: Tensor) -> Tensor:
        """The columns that the regression reads: (lines, width)."""
        return (encoded[:, self.columns].double() - self.centre) @ self.basis


def make_groups(
    encoded: Tensor,
    groups: list[Tensor],
    generator: torch.Generator | None = None,
    *,
    shared: bool = False,
) -> list[Group]:
    """Prepare groups of the columns of ``encoded`` (lines, columns); a constant group has width 0.

    If the lines are ``shared``, several processes have some of them each.

    A group of more columns than ``MAX_COLUMNS`` (or than lines) is reduced to its leading principal
    directions: exactly where that is cheap, otherwise by a randomised decomposition.
    """
    made = []
    for columns in groups:
        part = encoded[:, columns].double()
        if shared and not crew().alone:
            made.append(_shared_group(columns, part))
            continue
        size = (part**2).sum() / max(1, len(part))
        centre = part.mean(0) if len(part) else part.new_zeros(part.shape[1])
        part = part - centre
        lines, width = part.shape
        length = (part**2).sum() / max(1, lines)
        if width == 0 or lines < 2 or float(length) <= 1e-10 * float(size):
            basis = part.new_zeros(width, 0)
        elif width <= min(MAX_COLUMNS, lines):
            basis = torch.eye(width, dtype=part.dtype) / length.sqrt()
        else:
            basis = leading_directions(part, min(MAX_COLUMNS, lines - 1), generator) / length.sqrt()
        made.append(Group(columns, centre, basis))
    return made


def _shared_group(columns: Tensor, part: Tensor) -> Group:
    """A group of columns whose lines several processes have."""
    lines, width = crew().span(len(part))[1], part.shape[1]
    if width > min(MAX_COLUMNS, lines):  # few lines, or few directions of many columns
        return make_groups(crew().gathered(part), [torch.arange(width)])[0].of(columns)
    size = crew().count(float((part**2).sum())) / max(1, lines)
    centre = crew().total(part.sum(0)) / max(1, lines)
    length = crew().count(float(((part - centre) ** 2).sum())) / max(1, lines)
    if width == 0 or lines < 2 or length <= 1e-10 * size:
        return Group(columns, centre, part.new_zeros(width, 0))
    return Group(columns, centre, torch.eye(width, dtype=part.dtype) / length**0.5)


def leading_directions(part: Tensor, rank: int, generator: torch.Generator | None = None) -> Tensor:
    """The leading principal directions of centred columns (lines, columns): (columns, rank)."""
    lines, width = part.shape
    if min(lines, width) <= 2 * MAX_COLUMNS:
        if lines <= width:
            values, vectors = torch.linalg.eigh(part @ part.T)
            values, vectors = values[-rank:], vectors[:, -rank:]
            kept = values > 1e-9 * values[-1]
            exact: Tensor = part.T @ vectors[:, kept] / values[kept].sqrt()
            return exact
        of_columns: Tensor = torch.linalg.eigh(part.T @ part).eigenvectors
        return of_columns[:, -rank:]
    basis = torch.randn(width, rank + 16, dtype=part.dtype, generator=generator)
    for _ in range(4):
        basis = torch.linalg.qr(part.T @ torch.linalg.qr(part @ basis).Q).Q
    _, _, turn = torch.linalg.svd(part @ basis, full_matrices=False)
    leading: Tensor = (basis @ turn.T)[:, :rank]
    return leading
