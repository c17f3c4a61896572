"""Kinds written as the user can give them to a later call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headstart.errors import argument, worded
from headstart.table.kinds import Kind, KindType

MAX_SHOWN = 20  # single features with a kind of their own; more are counted


def kinds_to_paste(names: Iterable[str], kinds: Iterable[Kind]) -> str:
    """Return what gives these features these kinds: the usual kind, then the features with another one.

    Reals are written without center and scale: these are computed from the data again.

    >>> kinds_to_paste(["a", "b", "c"], [Kind.real(5, 2), Kind.real(3, 2), Kind.binary()])
    "kinds={None: 'real', 'c': 'binary'}"
    """
    texts = [kind.name if kind.type == KindType.REAL else str(kind) for kind in kinds]
    usual = Counter(texts).most_common(1)[0][0]
    others = [(name, text) for name, text in zip(names, texts, strict=True) if text != usual]
    more = f" and {len(others) - MAX_SHOWN} more" if len(others) > MAX_SHOWN else ""
    return pasted({None: usual, **dict(others[:MAX_SHOWN])}) + more


def pasted(kinds: Mapping[str | None, str]) -> str:
    """Write kinds as an argument or as options.

    >>> pasted({"b": "real"}), pasted({None: "real"})
    ("kinds={'b': 'real'}", "kinds='real'")
    >>> from headstart.errors import command_line
    >>> with command_line():
    ...     pasted({None: "real", "the b": "rating:1:5"})
    "--kind real --kind 'the b=rating:1:5'"
    """
    options = [text if name is None else f"{name}={text}" for name, text in kinds.items()]
    value = kinds[None] if list(kinds) == [None] else dict(kinds)
    return worded(argument("kinds", value), " ".join(argument("kinds", option) for option in options))
