"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.errors import InputError
from headstart.table import Table

Model = Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)]
Metadata = Annotated[Path | None, typer.Option("--metadata", help="File of metadata, one line per feature.")]
MetaShare = Annotated[
    float | None,
    typer.Option(
        "--meta-share",
        help="Share of the features that teaches only the adapter, as in the paper; else all teach both.",
    ),
]
RowColumn = Annotated[str, typer.Option("--row", help="Name of the column that names the row.")]
FeatureColumn = Annotated[str, typer.Option("--feature", help="Name of the column that names the feature.")]
ValueColumn = Annotated[str, typer.Option("--value", help="Name of the column that holds the value.")]
TableKind = Annotated[
    str | None, typer.Option("--kind", help="Kind of all features, as rating:1:5; else inferred.")
]
Form = Annotated[
    str, typer.Option("--form", help="long (row, feature, value), wide (a column a feature) or auto.")
]
Duplicates = Annotated[
    str, typer.Option("--duplicates", help="Of values that contradict each other: error, last or mean.")
]
MetadataTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata-type",
        metavar="NAME=TYPE",
        help="Type of a metadata column: number, date, category, labels, text, vector or ignore; "
        "may be repeated.",
    ),
]
BackboneName = Annotated[str, typer.Option("--backbone", help="factorisation, pvae or feedforward.")]
NAMES_HELP = "A name, several with commas between, or a file of one a line; may be repeated."
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def read_table(
    observations: Path,
    metadata: Path | None,
    columns: tuple[str, str, str],
    kind: str | None,
    form: Any,
    duplicates: Any,
    metadata_types: list[str] | None,
) -> Table:
    """Read a table as the options say; ``columns`` name row, feature and value."""
    row, feature, value = columns
    return Table.read(
        observations,
        metadata=metadata,
        row=row,
        feature=feature,
        value=value,
        form=form,
        kinds=kind,
        metadata_types=_pairs(metadata_types or []),
        duplicates=duplicates,
    )


def parts(text: str) -> list[str]:
    """Part a text at its commas.

    >>> parts("u1, u2,")
    ['u1', 'u2']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def file_text(given: str) -> str | None:
    """The content of the file so called, or None where there is none."""
    try:
        return Path(given).read_text(encoding="utf-8") if Path(given).is_file() else None
    except UnicodeDecodeError:
        raise InputError(f"{given} is not UTF-8 text") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def named(given: list[str] | None, known: Collection[str], option: str) -> list[str] | None:
    """The names an option gives: as they are, with commas between, or from a file; None if not given."""
    if given is None:
        return None
    names: list[str] = []
    for text in given:
        if text in known:  # first, because a name may hold commas itself
            names.append(text)
        elif (content := file_text(text)) is not None:
            names += [line.strip() for line in content.splitlines() if line.strip()]
        else:
            names += parts(text)
    if not names:
        raise InputError(f"{option} names nothing; leave it out for all, or name some")
    return names


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, _, kind = text.rpartition("=")
        if not (name and kind):
            raise InputError(f"--metadata-type must be NAME=TYPE, as year=category; got {text!r}")
        pairs[name] = kind
    return pairs
