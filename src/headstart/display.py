"""Format numbers with their nouns, and small tables as HTML for notebooks and as text for terminals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

MAX_LINES = 20  # of a table in a notebook or a terminal; the number of further lines is printed below

_IRREGULAR = {"person": "people", "child": "children", "man": "men", "woman": "women", "series": "series"}


def plural(noun: str) -> str:
    """Return the plural of an English noun.

    >>> [plural(noun) for noun in ("film", "dish", "city", "person")]
    ['films', 'dishes', 'cities', 'people']
    """
    first, space, last = noun.rpartition(" ")
    if last in _IRREGULAR:
        return f"{first}{space}{_IRREGULAR[last]}"
    if re.search(r"[^aeiou]y$", last):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if re.search(r"(s|x|z|ch|sh)$", last) else f"{noun}s"


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "film"), count(3, "film")
    ('1 film', '3 films')
    """
    return f"{number} {noun if number == 1 else plural(noun)}"


def cell_text(value: object) -> str:
    """Return a value as text; numbers have four significant digits.

    >>> cell_text(3.14159), cell_text(None), cell_text("a")
    ('3.142', '', 'a')
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_html(
    header: Sequence[object],
    lines: Iterable[Sequence[object]],
    caption: str = "",
    *,
    total: int | None = None,
) -> str:
    """Return an HTML table; every text is escaped.

    Parameters
    ----------
    header : sequence
        The titles of the columns; an empty sequence gives a table without a header.
    lines : iterable of sequences
        The cells, one sequence per line. The first cell of a line is its header.
    caption : str, default=""
        The title of the table.
    total : int, default=None
        The number of lines of the whole table, if ``lines`` has only the first of them.

    >>> print(table_html(["feature", "mean"], [["<b>", 4.25]], "one feature"))
    <table><caption>one feature</caption>
    <thead><tr><th scope="col">feature</th><th scope="col">mean</th></tr></thead>
    <tbody><tr><th scope="row" style="text-align:left">&lt;b&gt;</th><td>4.25</td></tr></tbody></table>
    """
    body = ["<tr>" + "".join(_html_cells(line)) + "</tr>" for line in lines]
    if total is not None and total > len(body):
        width = max(1, len(header))
        body.append(f'<tr><td colspan="{width}" style="text-align:left">… {total - len(body)} more</td></tr>')
    titles = "".join(f'<th scope="col">{escape(cell_text(title))}</th>' for title in header)
    parts = [
        "<table>" + (f"<caption>{escape(caption)}</caption>" if caption else ""),
        f"<thead><tr>{titles}</tr></thead>" if header else "",
        "<tbody>" + "\n".join(body) + "</tbody></table>",
    ]
    return "\n".join(part for part in parts if part)


def facts_html(facts: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Return labelled facts as an HTML table without a header."""
    return table_html((), facts, caption)


def text_table(lines: Iterable[Sequence[object]]) -> str:
    """Return lines of cells as text with aligned columns, the first to the left and the others to the right.

    >>> print(text_table([["Alien", 4.5], ["Up", 3.25]]))
      Alien   4.5
      Up     3.25
    """
    texts = [[cell_text(value) for value in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in texts
    )


def _html_cells(line: Sequence[object]) -> Iterable[str]:
    """Yield the cells of one line; texts are aligned to the left."""
    for number, value in enumerate(line):
        text = escape(cell_text(value))
        if number == 0:
            yield f'<th scope="row" style="text-align:left">{text}</th>'
        elif isinstance(value, str):
            yield f'<td style="text-align:left">{text}</td>'
        else:
            yield f"<td>{text}</td>"
