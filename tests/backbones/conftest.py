from __future__ import annotations

import torch

from headstart.table.cells import Cells


def random_cells(rows: int, features: int, density: float, seed: int, grid: int | None = 5) -> Cells:
    """Random observations; values on a grid of that many points, or anywhere in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    lines, index = torch.nonzero(torch.rand(rows, features, generator=generator) < density, as_tuple=True)
    values = torch.rand(len(lines), generator=generator)
    if grid is not None:
        values = (values * (grid - 1)).round() / (grid - 1)
    return Cells.from_pairs(lines, index, values, rows, features)
