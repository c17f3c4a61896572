"""The set encoder of the P-VAE."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headstart.backbones.pvae import SetEncoder
from headstart.table.cells import Cells
from tests.linalg.test_sparse import lines_of


def encode_sets(encoder: SetEncoder, cells: Cells) -> Tensor:
    """h([x, x·e_j, bias_j]) one observation at a time, summed over the row."""
    rows = []
    for line in lines_of(cells):
        total = torch.zeros(encoder.layer.out_features)
        for j, x in line:
            inputs = torch.cat([torch.tensor([x]), x * encoder.embedding[j], encoder.bias[j]])
            total = total + torch.relu(encoder.layer.weight @ inputs + encoder.layer.bias)
        if encoder.pooling == "root":
            n = len(line)
            total = torch.cat([total / math.sqrt(max(n, 1)), torch.tensor([math.log(1 + n)])])
        rows.append(total)
    return torch.stack(rows)
