"""Entries of which some are gone, without a copy of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headstart.model.parts.entry import Entry


class Without(Mapping[str, Entry]):
    """The entries of another mapping but those of some names, which are all in it."""

    def __init__(self, entries: Mapping[str, Entry], gone: frozenset[str]) -> None:
        self._entries, self._gone = entries, gone

    def __len__(self) -> int:
        return len(self._entries) - len(self._gone)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._entries if name not in self._gone)

    def __contains__(self, name: object) -> bool:
        return name not in self._gone and name in self._entries

    def __getitem__(self, name: str) -> Entry:
        if name in self._gone:
            raise KeyError(name)
        return self._entries[name]

    def less(self, name: str) -> Without:
        """The same without one more."""
        return Without(self._entries, self._gone | {name})


def without(
    base: Mapping[str, Entry], recent: dict[str, Entry], name: str
) -> tuple[Mapping[str, Entry], dict[str, Entry]]:
    """The entries of a catalogue, in two parts of which the second comes first, without those of a name.

    Of entries in a dictionary a new one is made, which is quick to read. Others stay in their file.
    """
    if isinstance(base, dict):
        return {key: entry for key, entry in {**base, **recent}.items() if key != name}, {}
    kept = {key: entry for key, entry in recent.items() if key != name}
    if name not in base:
        return base, kept
    return (base.less(name) if isinstance(base, Without) else Without(base, frozenset([name]))), kept
