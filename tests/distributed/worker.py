"""One of several processes: fits every case, and compares what the parts compute with one process's."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from headstart import Headstart, Table
from headstart.distributed import SINGLE_PROCESS, join_processes, process_group, use_group
from headstart.errors import InputError
from headstart.linalg.row_sharded import draw_normal_rows, draw_uniform_at, gather_cells, tall_qr
from headstart.table.kind_inference import resolve_kinds, sample_values
from headstart.table.names import Names
from headstart.table.shards import FeatureExchange
from tests.distributed.cases import CASES, KINDS, WEIGHT, as_tested
from tests.pretended import Pretending, device_named


def own(lines: torch.Tensor) -> torch.Tensor:
    """A share of lines, of another length in every process."""
    cuts = torch.linspace(0, 1, process_group().size + 1) ** 2 * len(lines)
    return lines[int(cuts[process_group().rank]) : int(cuts[process_group().rank + 1])]


def check_collectives() -> None:
    rank, size = process_group().rank, process_group().size
    numbers = torch.arange(3.0)
    assert process_group().all_reduce_sum(numbers).tolist() == [0, size, 2 * size]
    assert numbers.tolist() == [0, 1, 2]  # not written over
    assert process_group().all_reduce_max(torch.tensor([rank])).item() == size - 1
    assert process_group().span(rank + 1) == (rank * (rank + 1) // 2, size * (size + 1) // 2)
    assert process_group().all_gather(torch.full((rank,), rank)).tolist() == [
        r for r in range(size) for _ in range(r)
    ]
    sent = [torch.tensor([[rank, to]] * to).reshape(-1, 2) for to in range(size)]
    assert [part.tolist() for part in process_group().all_to_all(sent)] == [
        [[r, rank]] * rank for r in range(size)
    ]
    assert process_group().all_gather_texts(["é"] * rank) == [["é"] * r for r in range(size)]
    collected = [part.tolist() for part in process_group().gather_blocks(torch.full((rank + 1,), rank))]
    assert collected == ([[r] * (r + 1) for r in range(size)] if process_group().is_main else [])
    mine = torch.full((2,), float(rank))
    process_group().broadcast(mine)
    assert mine.tolist() == [0, 0]

    def fails_once() -> None:
        if rank == size - 1:
            raise InputError("the last one fails")

    with pytest.raises(InputError, match="the last one fails") as failed:
        process_group().all_or_none(fails_once)
    assert failed.value.shared


def check_algebra() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(50, 4, generator=generator)
    near, upper = tall_qr(own(whole))
    assert torch.allclose(near @ upper, own(whole), atol=1e-5)
    assert torch.allclose(process_group().all_reduce_sum(near.T @ near), torch.eye(4), atol=1e-5)
    for width in (1, 3, 7):
        expected = torch.randn(37, width, generator=generator.manual_seed(5))
        after = torch.rand(1, generator=generator)
        drawn = draw_normal_rows(len(own(expected)), width, generator.manual_seed(5))
        assert torch.equal(drawn, own(expected))
        assert torch.equal(after, torch.rand(1, generator=generator))  # as much was drawn
    expected = torch.rand(200, generator=generator.manual_seed(6), dtype=torch.float64)
    places = torch.arange(200)[process_group().rank :: process_group().size]
    assert torch.equal(draw_uniform_at(places, 200, generator.manual_seed(6)), expected[places])


def check_regrouping() -> None:
    rng = np.random.default_rng(0)
    index, values = rng.integers(0, 9, 400), np.round(rng.normal(size=400), 1)
    index[:30] = 8  # of unequal sizes
    mine = own(torch.arange(400))
    grouped = FeatureExchange(torch.from_numpy(index)[mine], 9)
    arrived = grouped.send(torch.from_numpy(values)[mine])
    order = np.argsort(index, kind="stable")
    inside = np.isin(index[order], np.arange(9)[grouped.features])
    assert np.array_equal(arrived.numpy(), values[order][inside])
    assert torch.equal(grouped.send_back(arrived), torch.from_numpy(values)[mine])
    names = Names([f"f{i}" for i in range(10)], "feature")  # nobody has observed the last one
    for given in (np.round(np.abs(values)), values, (values > 0) * 1.0, np.exp(9 * values)):
        few = sample_values(index[mine], given[mine], 10)
        assert len(few[0]) < 400 or process_group().is_single
        kinds, notes = resolve_kinds(None, names, index[mine], given[mine])
        with use_group(SINGLE_PROCESS):
            expected, expected_notes = resolve_kinds(None, names, index, given)
        assert np.array_equal(kinds.types, expected.types)
        np.testing.assert_allclose(kinds.offsets, expected.offsets, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(kinds.spans, expected.spans, rtol=1e-12)
        assert len(notes) == len(expected_notes)


def check_whole_tables(root: Path) -> None:
    with use_group(SINGLE_PROCESS):
        table = Table.read(root / "ratings", quiet=True)
    with pytest.raises(InputError, match="must have a part of the rows each"):
        Headstart(adapter="bayes", quiet=True).fit(table)


def fit_all(root: Path) -> None:
    for case, settings in CASES.items():
        with as_tested(case):
            metadata = root / "metadata.parquet" if case == "judged" else None
            table = Table.read(
                root / case, metadata=metadata, kinds=KINDS.get(case), weight=WEIGHT.get(case), quiet=True
            )
            cells = table.cells().transpose()
            if process_group().is_single or case == "ratings":
                assert len(gather_cells(cells, len(table.rows)).index) == process_group().sum_number(
                    len(table)
                )
            Headstart(quiet=True, **settings).fit(table).save(root / f"{case}.model")


def fit_there(root: Path, cases: list[str]) -> None:
    """Fit some cases on the pretended device, which every process takes for its own card."""
    for case in cases:
        with as_tested(case), device_named("card"), Pretending():
            metadata = root / "metadata.parquet" if case == "judged" else None
            table = Table.read(
                root / case, metadata=metadata, kinds=KINDS.get(case), weight=WEIGHT.get(case), quiet=True
            )
            model = Headstart(quiet=True, device="card", **CASES[case]).fit(table)
        model.save(root / f"{case}-there.model")


def threads() -> list[str]:
    """The names of this process's threads."""
    tasks = Path("/proc/self/task")
    return [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []


if __name__ == "__main__":
    with join_processes():
        if len(sys.argv) > 2:
            fit_there(Path(sys.argv[1]), sys.argv[2:])
        else:
            check_collectives()
            check_algebra()
            check_regrouping()
            check_whole_tables(Path(sys.argv[1]))
            fit_all(Path(sys.argv[1]))
    assert "pt_gloo_runloop" not in threads()  # at the end of Python they would crash
