"""Compute on matrices whose rows are divided among processes.

Each process holds consecutive rows of a matrix, its *local* rows; the *global* matrix consists of the local
rows of all processes in the order of the processes. All processes must call these functions in the same
order. In a single process every function is the plain PyTorch computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from headstart.distributed import ProcessGroup, process_group
from headstart.linalg.ragged import column_sums, gram, ranks_in_line
from headstart.table.cells import Cells, index_dtype, offsets, ranges

_DRAW_SIZE = 2**22  # numbers drawn at a time; a multiple of 16, see ``draw_normal_rows``

_BLOCK_ITEMS = 2**22  # items of lines gathered at a time

# -- sums, counts and moments -------------------------------------------------------------------------


def global_sum(part: Tensor) -> Tensor:
    """Sum a tensor of the same shape over all processes."""
    return process_group().all_reduce_sum(part)


def global_max(part: Tensor) -> Tensor:
    """Compute the elementwise maximum of a tensor of the same shape over all processes."""
    return process_group().all_reduce_max(part)


def global_count(count: int) -> int:
    """Sum a number of local items over all processes."""
    return process_group().span(count)[1]


def global_start(count: int) -> int:
    """Return the global position of the first of ``count`` local items."""
    return process_group().span(count)[0]


def global_mean(values: Tensor, group: ProcessGroup | None = None) -> float:
    """Compute the mean of the values (n,) of all processes, 0 if there are none.

    ``group`` are the processes that hold the values, by default the current process group.
    """
    group = process_group() if group is None else group
    if group.is_single:
        return float(values.mean()) if len(values) else 0.0
    return group.sum_number(float(values.double().sum())) / max(1, group.span(len(values))[1])


def global_std(values: Tensor) -> float:
    """Compute the standard deviation of the values (n,) of all processes."""
    if process_group().is_single:
        return float(values.std(correction=0))
    return float(global_mean((values.double() - global_mean(values)) ** 2) ** 0.5)


def column_moments(part: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean, standard deviation and mean absolute value of each column of (rows, columns).

    There must be at least two rows in all processes together.
    """
    if process_group().is_single:
        return part.mean(0), part.std(0), part.abs().mean(0)
    rows, part = global_count(len(part)), part.double()
    mean, size = global_sum(torch.stack([part.sum(0), part.abs().sum(0)])) / rows
    squares = global_sum(((part - mean) ** 2).sum(0))
    return mean, (squares / (rows - 1)).sqrt(), size


def second_moment(part: Tensor, covariance: Tensor | None = None) -> Tensor:
    """Compute the mean of [x; 1]·[x; 1]ᵀ over the rows x of (rows, size): (size + 1, size + 1), float64.

    ``covariance`` (size, size) is the sum of the covariances of the local rows where these are uncertain.
    """
    size = part.shape[1]
    moment = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    moment[:-1, :-1] = gram(part, part)
    if covariance is not None:
        moment[:-1, :-1] += covariance
    moment[:-1, -1] = moment[-1, :-1] = column_sums(part)
    moment[-1, -1] = len(part)
    return global_sum(moment) / max(1, global_count(len(part)))


def feature_counts(cells: Cells) -> Tensor:
    """Count the observations of each feature, from cells with one line per local row: (features,)."""
    return global_sum(torch.bincount(cells.index, minlength=cells.width))


def feature_sums(cells: Cells, numbers: Tensor) -> Tensor:
    """Sum ``numbers`` (n,), one per observation, by feature in double precision: (features,)."""
    return global_sum(torch.bincount(cells.index, numbers.double(), minlength=cells.width))


def global_unique(values: Tensor, most: int) -> Tensor:
    """Return the distinct values of all processes, sorted; more than ``most`` if there are more.

    Each process sends at most ``most`` + 1 values.
    """
    distinct: Tensor = torch.unique(values)
    if process_group().is_single:
        return distinct
    gathered: Tensor = torch.unique(process_group().all_gather(distinct[: most + 1]))
    return gathered


# -- decompositions -----------------------------------------------------------------------------------


def tall_qr(part: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the QR decomposition of the matrix with the local rows ``part`` (rows, columns).

    Returns the local rows of Q, and R. The R factors of all processes are gathered and decomposed once
    more, so signs may differ from those of ``torch.linalg.qr`` of the global matrix.
    """
    local_q, upper = torch.linalg.qr(part)
    if process_group().is_single:
        return local_q, upper
    start = global_start(len(upper))
    joint_q, upper = torch.linalg.qr(gather_rows(upper))
    return local_q @ joint_q[start : start + local_q.shape[1]], upper


def right_singular_vectors(part: Tensor) -> Tensor:
    """Compute Vᵀ of the singular value decomposition of the matrix with the local rows ``part``."""
    matrix = part if process_group().is_single else tall_qr(part)[1]
    vectors: Tensor = torch.linalg.svd(matrix, full_matrices=False)[2]
    return vectors


def fix_signs(vectors: Tensor) -> Tensor:
    """Choose the signs of the columns of ``vectors`` (n, columns) independently of the number of processes.

    The largest entry of each column becomes positive. Without a launcher of processes nothing changes.
    """
    if not process_group().launched:
        return vectors
    return vectors * vectors.gather(0, vectors.abs().argmax(0)[None]).sign()


# -- rows of other processes --------------------------------------------------------------------------


def gather_rows(part: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of the processes."""
    return process_group().all_gather(part.contiguous())


def gather_first_rows(part: Tensor, most: int) -> Tensor:
    """Return the first ``most`` global rows."""
    return gather_rows(part[: max(0, most - global_start(len(part)))])


def gather_row_blocks(part: Tensor) -> Iterator[Tensor]:
    """Yield the global rows in blocks of bounded size in the main process; the others send theirs."""
    yield from process_group().gather_blocks(part)


def gather_line_blocks(part: Tensor, counts: Tensor) -> Iterator[Tensor]:
    """Yield the items of all processes, line by line, in blocks in the main process; the others send theirs.

    ``part`` (n,) has the local items of each line, ``counts`` (lines,) their numbers. The items of a line
    are in the order of the processes.
    """
    if process_group().is_single:
        yield part
        return
    ends, global_ends = counts.cumsum(0), global_sum(counts).cumsum(0)
    blocks = torch.div(global_ends, _BLOCK_ITEMS, rounding_mode="floor")
    cuts = [0, *(torch.nonzero(blocks.diff())[:, 0] + 1).tolist(), len(counts)]
    for first, last in pairwise(cuts):
        begin, end = (int(ends[cut - 1]) if cut else 0 for cut in (first, last))
        lines = torch.repeat_interleave(counts[first:last])
        items = list(gather_row_blocks(part[begin:end]))
        item_lines = list(gather_row_blocks(lines))
        if process_group().is_main and items:
            yield torch.cat(items)[torch.argsort(torch.cat(item_lines), stable=True)]


def gather_sample(most: int, *parts: Tensor, group: ProcessGroup | None = None) -> list[Tensor]:
    """Gather at most ``most`` equally spaced global rows of each of several matrices of equal length.

    ``group`` are the processes that hold the rows, by default the current process group.
    """
    group = process_group() if group is None else group
    count = len(parts[0])
    start, total = group.span(count)
    if total > most:
        chosen = torch.linspace(0, total - 1, most, dtype=torch.float64).long()
        local = chosen[(chosen >= start) & (chosen < start + count)] - start
        parts = tuple(part[local] for part in parts)
    return [group.all_gather(part.contiguous()) for part in parts]


def gather_random_rows(part: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Draw at most ``most`` global rows without replacement, and return them in any order."""
    chosen = torch.randperm(global_count(len(part)), generator=generator)[:most]
    return gather_rows(part[select_local(chosen, len(part))[1]])


def select_local(chosen: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find the ``chosen`` (m,) global rows that are among the ``count`` local ones.

    Returns their positions in ``chosen`` and their positions among the local rows.
    """
    start = global_start(count)
    positions = torch.nonzero((chosen >= start) & (chosen < start + count))[:, 0]
    return positions, chosen[positions] - start


def sample_rows(
    cells: Cells, vectors: Tensor, most: int, generator: torch.Generator
) -> tuple[Cells, Tensor, Tensor, int]:
    """Draw at most ``most`` global rows, from cells with one line per local row.

    Returns the observations and the ``vectors`` (rows, size) of the drawn local rows, the positions of these
    observations among the observations of all drawn rows, and the number of the latter.
    """
    rows = global_count(len(cells))
    if rows <= most:
        start, total = process_group().span(len(cells.index))
        return cells, vectors, torch.arange(start, start + len(cells.index)), total
    sample = torch.randperm(rows, generator=generator)[:most]
    positions, local = select_local(sample, len(cells))
    counts = torch.zeros_like(sample)
    counts[positions] = cells.counts[local]
    counts = global_sum(counts)
    observations = ranges(offsets(counts)[positions], counts[positions])
    return cells.take(local), vectors[local], observations, int(counts.sum())


def gather_cells(cells: Cells, rows: int) -> Cells:
    """Gather the observations of all processes, from cells with one line per feature and ``rows`` local rows.

    The observations of a feature are in the order of the global rows.
    """
    if process_group().is_single:
        return cells
    start, total = process_group().span(rows)
    lines = gather_rows(cells.lines)
    order = torch.argsort(lines, stable=True)
    index = gather_rows(cells.index.to(index_dtype(total)) + start)[order]
    values = gather_rows(cells.values)[order]
    weights = None if cells.weights is None else gather_rows(cells.weights)[order]
    return Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, total, weights)


def sample_by_feature(cells: Cells, rows: int, most: int, generator: torch.Generator) -> Cells:
    """Draw at most ``most`` observations of each feature, from cells with one line per feature.

    The result does not depend on the number of processes: each draws among its ``rows`` rows with the keys
    that one process would draw, and sends only its candidates.
    """
    group = process_group()
    start, total = group.span(rows)
    counts = group.all_gather(cells.counts[None])  # (processes, features)
    before, all_counts = counts[: group.rank].sum(0), counts.sum(0)
    positions = ranges(offsets(all_counts)[:-1] + before, cells.counts)
    keys = draw_uniform_at(positions, int(all_counts.sum()), generator)
    smallest = ranks_in_line(cells, keys) < most
    if group.is_single:
        return cells.keep(smallest)
    lines, keys = gather_rows(cells.lines[smallest]), gather_rows(keys[smallest])
    index = gather_rows(cells.index[smallest].to(index_dtype(total)) + start)
    values = gather_rows(cells.values[smallest])
    order = torch.argsort(lines, stable=True)
    weights = None if cells.weights is None else gather_rows(cells.weights[smallest])[order]
    lines, keys, index, values = lines[order], keys[order], index[order], values[order]
    candidates = Cells(offsets(torch.bincount(lines, minlength=len(cells))), index, values, total, weights)
    return candidates.keep(ranks_in_line(candidates, keys) < most)


# -- random numbers -----------------------------------------------------------------------------------


def draw_normal_rows(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw the ``count`` local rows of a matrix of standard normal numbers: (count, width).

    The global matrix does not depend on the number of processes.
    """
    if process_group().is_single:
        return torch.randn(count, width, generator=generator)
    start, rows = process_group().span(count)
    local = torch.empty(count * width)
    begin, end, total = start * width, (start + count) * width, rows * width
    position = 0
    while position < total:
        # PyTorch draws normal numbers in groups of 16, and draws an incomplete last group differently:
        # every draw but the last is a multiple of 16, and the last has at least 16 numbers.
        stop = total if total - position < _DRAW_SIZE + 16 else position + _DRAW_SIZE
        drawn = torch.randn(stop - position, generator=generator)
        low, high = max(position, begin), min(stop, end)
        if low < high:
            local[low - begin : high - begin] = drawn[low - position : high - position]
        position = stop
    return local.view(count, width)


def draw_uniform_at(positions: Tensor, total: int, generator: torch.Generator) -> Tensor:
    """Draw ``total`` uniform numbers in double precision and return those at ``positions`` (n,): (n,).

    ``positions`` are ascending.
    """
    if process_group().is_single and len(positions) == total:
        return torch.rand(total, generator=generator, dtype=torch.float64)
    result = torch.empty(len(positions), dtype=torch.float64)
    for start in range(0, total, _DRAW_SIZE):
        drawn = torch.rand(min(_DRAW_SIZE, total - start), generator=generator, dtype=torch.float64)
        low, high = torch.searchsorted(positions, torch.tensor([start, start + len(drawn)])).tolist()
        result[low:high] = drawn[positions[low:high] - start]
    return result
