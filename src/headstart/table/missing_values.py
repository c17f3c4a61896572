"""Codes for missing values: codes that the user names, and values that look like one."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError, for_user, option_name
from headstart.table.kinds import is_value

MissingLike = float | str | Iterable[float | str] | None

MIN_OBSERVATIONS = 20  # of the other values: with fewer, a gap between them means nothing

MAX_CODES = 3  # values that are far from the others, such as 97, 98 and 99

_USUAL_CODE = re.compile(r"7+|8+|9+|9+[78]")  # the usual positive codes of surveys


@dataclass(frozen=True)
class MissingCodes:
    """Numbers and texts that stand for "not observed" in observations.

    Examples
    --------
    >>> MissingCodes.of([-9, "99", "refused"])
    MissingCodes(numbers=(-9.0, 99.0), texts=('refused',))
    >>> MissingCodes.of([-9]).to_null(pa.array([3.0, -9.0])).to_pylist()
    [3.0, None]
    """

    numbers: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: MissingLike, name: str = "missing") -> MissingCodes:
        """Return the codes in ``given``: one number or text, or several. A text of a number is a number.

        ``name`` is the argument, for messages.
        """
        if given is None:
            return cls()
        several = isinstance(given, Collection) and not (
            isinstance(given, (str, bytes, bytearray, memoryview, Mapping)) or hasattr(given, "columns")
        )
        codes: list[Any] = list(given) if several else [given]  # type: ignore[arg-type]
        numbers, texts = [], []
        for code in codes:
            if isinstance(code, str) and code.strip():
                try:
                    number = float(code)
                except ValueError:
                    number = math.nan
                if math.isfinite(number):
                    numbers.append(number)
                else:  # also nan and inf, which are not written by numbers
                    texts.append(code.strip())
            elif is_value(code) and not isinstance(code, (bool, np.bool_)):
                numbers.append(_as_float(code))
            else:
                raise InputError(
                    f"{option_name(name)} takes numbers and texts, as {as_missing([-9, 'refused'], name)}; "
                    f"got {code!r}"
                )
        return cls(tuple(numbers), tuple(texts))

    def __bool__(self) -> bool:
        return bool(self.numbers or self.texts)

    def to_null(self, column: pa.Array) -> pa.Array:
        """Replace the codes in a column of numbers or texts by nulls.

        Texts become numbers if the texts without codes are numbers: a column of numbers and words is text.
        """
        if not self:
            return column
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.utf8_trim_whitespace(column.cast(pa.string()))
            codes = [text for text in column.unique().drop_null().to_pylist() if self._has(text)]
            column = _without(column, pa.array(codes, pa.string()))
            try:
                column = column.cast(pa.float64())
            except pa.ArrowInvalid:
                return column
        elif pa.types.is_integer(column.type):
            column = column.cast(pa.float64(), safe=False)
        if self.numbers and pa.types.is_floating(column.type):
            column = _without(column, pa.array(self.numbers, pa.float64()).cast(column.type, safe=False))
        return column

    def _has(self, text: str) -> bool:
        """Return whether a text is a code, or writes the number of one."""
        if text in self.texts:
            return True
        try:
            return float(text) in self.numbers
        except ValueError:
            return False

    def __add__(self, other: MissingCodes) -> MissingCodes:
        return MissingCodes(self.numbers + other.numbers, self.texts + other.texts)

    def __sub__(self, other: MissingCodes) -> MissingCodes:
        return MissingCodes(
            tuple(number for number in self.numbers if number not in other.numbers),
            tuple(text for text in self.texts if text not in other.texts),
        )

    def describe(self) -> str:
        """List the codes for a message: ``-9, 'refused'``."""
        return ", ".join([*(f"{number:g}" for number in self.numbers), *map(repr, self.texts)])


NO_CODES = MissingCodes()

_NO_ANSWER = re.compile(
    r"(refus|don'?t know|do not know|not applicable|inapplicable|no answer|not asked|not answered"
    r"|no response|missing|skipped).*|d\.?k\.?|n\.?/?a\.?|dk/na"
)


def is_no_answer(label: str) -> bool:
    """Return whether a label says that there is no answer.

    >>> is_no_answer("Refused"), is_no_answer("n/a"), is_no_answer("Nauru")
    (True, True, False)
    """
    return _NO_ANSWER.fullmatch(label.strip().casefold()) is not None


def _as_float(code: Any) -> float:
    try:
        return float(code)
    except OverflowError:
        return math.inf


def _without(column: pa.Array, codes: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_in(column, value_set=codes), pa.scalar(None, column.type), column)


def as_missing(codes: Iterable[float | str], name: str = "missing") -> str:
    """Write codes as the argument or option ``name``.

    >>> as_missing([-9.0, "refused"])
    "missing=[-9, 'refused']"
    """
    texts = [code if isinstance(code, str) else f"{code:.12g}" for code in codes]
    shown = ", ".join(
        repr(text) if isinstance(code, str) else text for text, code in zip(texts, codes, strict=True)
    )
    return for_user(f"{name}=[{shown}]", option_name(name, ",".join(texts)))


def find_codes(
    values: NDArray[np.float64], counts: NDArray[np.int64], *, cautious: bool = False
) -> NDArray[np.float64]:
    """Return the values at one end that look like codes for missing values, such as 99 beside 1 to 5: (n,).

    Codes are at most three values that are far from a small grid of the others: negative numbers beside
    positive ones and the usual codes of surveys (8, 99, 998) at least the range of the others and three
    steps; other numbers twice as far. A single negative number is a code, too, if the others are zero or
    positive and it does not continue their grid, as -1 beside 1 to 5.

    Parameters
    ----------
    values : ndarray of shape (k,)
        The distinct values, sorted.
    counts : ndarray of shape (k,)
        The number of observations of each.
    cautious : bool, default=False
        Whether to return only negative numbers and usual codes of two digits and more.

    Examples
    --------
    >>> find_codes(np.array([1.0, 2, 3, 4, 99]), np.array([10, 10, 10, 10, 3]))
    array([99.])
    """
    none = np.zeros(0)
    if len(values) < 3:
        return none
    with np.errstate(over="ignore"):
        gaps = np.diff(values)
    split = int(np.argmax(gaps)) + 1
    low_is_main = (split, counts[:split].sum()) > (len(values) - split, counts[split:].sum())
    main, far = (values[:split], values[split:]) if low_is_main else (values[split:], values[:split])
    number = counts[:split].sum() if low_is_main else counts[split:].sum()
    if len(main) < 2 or len(far) > MAX_CODES or number < MIN_OBSERVATIONS:
        return none
    steps, gap = np.diff(main), float(gaps.max())
    with np.errstate(over="ignore", invalid="ignore"):  # very large numbers, which are on no grid
        multiples = steps / steps.min()
        if not np.abs(multiples - np.round(multiples)).max() <= 1e-4:
            return none
    negative = bool(far.max() < 0 <= main.min())
    continuous = len(main) >= 3 and bool((multiples < 1.5).all())
    if negative and len(far) == 1 and continuous and gap > 1.5 * steps.min():
        return far
    usual = all(_USUAL_CODE.fullmatch(f"{value:.12g}") for value in far)
    if cautious and not (negative or (usual and far.min() >= 10)):
        return none
    factor = 1 if negative or usual else 2
    least = factor * max(main[-1] - main[0], 3 * steps.min())
    return far if gap >= least * (1 - 1e-9) else none
