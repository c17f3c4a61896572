"""What several processes can train together."""

from __future__ import annotations

import hashlib

from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.registry import ADAPTERS
from headstart.backbones.factorisation import FactorisationConfig
from headstart.crew import crew
from headstart.errors import InputError, argument
from headstart.model.parts.settings import Settings
from headstart.table import Table
from headstart.table.numbering import sort_key


def require_shareable(settings: Settings) -> None:
    """Refuse settings of parts that need all rows in one process.

    Raises
    ------
    InputError
        If the backbone is not the factorisation, the adapter not bayes, chn-bayes or auto, or if there is a
        share of features for meta-training or a half-life.
    """
    if not isinstance(settings.backbone, FactorisationConfig):
        raise InputError(
            f"the backbone {settings.backbone.name!r} is trained by one process; under torchrun take "
            f"{argument('backbone', 'factorisation')}"
        )
    adapter = settings.adapter
    if not isinstance(adapter, str) and not issubclass(ADAPTERS.part_of(adapter), ClosedFormAdapter):
        raise InputError(
            f"the adapter {adapter.name!r} is trained by one process; under torchrun take "
            f"{argument('adapter', 'bayes')}, chn-bayes or auto"
        )
    for name in ("meta_share", "half_life"):
        if getattr(settings, name) is not None:
            raise InputError(f"{argument(name)} is not supported under torchrun; leave it out")


def require_part(table: Table) -> None:
    """Refuse a table of which each process has more than its own part of the rows.

    Raises
    ------
    InputError
        If the rows of the processes do not follow each other, or their features differ.
    """
    ends = crew().texts([table.rows[0], table.rows[-1]] if len(table.rows) else [])
    names = [sort_key(name) for pair in ends for name in pair]
    in_order = all(last < first for last, first in zip(names[1:-1:2], names[2::2], strict=True))
    digest = hashlib.sha256(repr(list(table.features)).encode()).hexdigest()
    same = len({each for digests in crew().texts([digest]) for each in digests}) == 1
    if not (same and in_order):
        raise InputError(
            "processes that train together must have a part of the rows each; read the table by Table.read "
            "inside working_together()"
        )
