"""How a text file is written: its separator, decimal point and encoding."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from encodings.aliases import aliases

from headstart.errors import InputError, did_you_mean

SEPARATORS = (",", ";", "\t", "|")
_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}


@dataclass(frozen=True)
class TextFormat:
    """How text files are written. What is None is found out, or has its usual value.

    Parameters
    ----------
    separator : str, optional
        The character between fields, or "tab". By default it is detected from the header.
    decimal : str, optional
        The decimal point of numbers, "." by default.
    encoding : str, optional
        The encoding, such as "latin-1"; UTF-8 by default.

    Examples
    --------
    >>> TextFormat(separator="tab").separator
    '\\t'
    >>> TextFormat(encoding="latn-1")
    Traceback (most recent call last):
    headstart.errors.InputError: encoding 'latn-1' is unknown; did you mean 'latin1'?
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        separator = self.separator
        if isinstance(separator, str):
            separator = _WORDS.get(separator, separator)
            object.__setattr__(self, "separator", separator)
        for name, text in (("separator", separator), ("decimal", self.decimal)):
            if text is not None and not (
                isinstance(text, str) and len(text) == 1 and text.isascii() and text not in '"\r\n\0'
            ):
                example = "';'" if name == "separator" else "','"
                raise InputError(f"{name} must be one character, such as {example}; got {text!r}")
        if self.decimal is not None and (self.decimal.isalnum() or self.decimal in "+-"):
            raise InputError(f"decimal must be a point or a comma; got {self.decimal!r}")
        if separator is not None and separator == (self.decimal or "."):
            raise InputError(f"the separator and the decimal point cannot both be {separator!r}")
        if self.encoding is not None:
            _check_encoding(self.encoding)

    @property
    def given(self) -> bool:
        """Whether anything was given."""
        return self != TextFormat()

    def separator_of(self, header: str, usual: str, wanted: Sequence[str]) -> str:
        """Return the separator of a file with this header.

        It is the one that was given, or the one with which the header has most of the ``wanted`` columns;
        among equals the ``usual`` one if the header contains it, and then the one with the most columns.

        >>> TextFormat().separator_of("user;film, by name;stars", ",", ["user", "stars"])
        ';'
        >>> TextFormat().separator_of("row;a;b", ",", ["row"])
        ';'
        """
        if self.separator is not None:
            return self.separator

        def score(separator: str) -> tuple[int, bool, int]:
            fields = next(csv.reader([header], delimiter=separator), [])
            cells = {field.strip() for field in fields}
            there = sum(name in cells for name in wanted)
            return there, separator == usual and len(fields) > 1, len(fields)

        allowed = [separator for separator in SEPARATORS if separator != self.decimal]
        return max(allowed, key=score)


def _check_encoding(encoding: object) -> None:
    try:
        codecs.lookup(encoding)  # type: ignore[arg-type]
        "".encode(encoding)  # type: ignore[arg-type]  # some codecs are not for text
    except (LookupError, TypeError, ValueError):
        hint = did_you_mean(str(encoding), set(aliases) | set(aliases.values()))
        raise InputError(f"encoding {encoding!r} is unknown{hint}") from None
