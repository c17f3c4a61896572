"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import errno
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.table import Table

Observations = Annotated[
    Path, typer.Argument(help="CSV or Parquet file, long (row, feature, value) or wide.", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)]
Metadata = Annotated[
    Path | None, typer.Option("--metadata", help="CSV or Parquet file of metadata, one line per feature.")
]
MetaShare = Annotated[
    float | None,
    typer.Option(
        "--meta-share",
        help="Share of the features that trains only the adapter, as in the paper. "
        "By default all features train both the backbone and the adapter.",
    ),
]
RowColumn = Annotated[str, typer.Option("--row", help="Column with the name of the row.")]
FeatureColumn = Annotated[str, typer.Option("--feature", help="Column with the name of the feature.")]
ValueColumn = Annotated[str, typer.Option("--value", help="Column with the value.")]
TableKind = Annotated[
    str | None,
    typer.Option("--kind", help="Kind of all features, such as rating:1:5. By default it is inferred."),
]
Form = Annotated[
    str, typer.Option("--form", help="long (row, feature, value), wide (one column per feature) or auto.")
]
Duplicates = Annotated[
    str,
    typer.Option("--duplicates", help="What to do with different values of one cell: error, last or mean."),
]
MetadataTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata-type",
        metavar="NAME=TYPE",
        help="Type of a metadata column: number, date, category, labels, text, vector or ignore. "
        "text:MODEL names a sentence encoder or its folder; text:128 hashes words into 128 numbers. "
        "Can be repeated.",
    ),
]
BackboneName = Annotated[str, typer.Option("--backbone", help="factorisation, pvae or feedforward.")]
NAMES_HELP = "A name, several names separated by commas, or a file with one name per line. Can be repeated."
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def read_table(
    observations: Path,
    metadata: Path | None,
    columns: tuple[str, str, str],
    kind: str | None,
    form: Any,
    duplicates: Any,
    metadata_types: list[str] | None,
    quiet: bool,
) -> Table:
    """Read a table as the options say; ``columns`` are the columns of row, feature and value."""
    from headstart.table import Table

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
        quiet=quiet,
    )


def parts(text: str) -> list[str]:
    """Split a text at its commas.

    >>> parts("u1, u2,")
    ['u1', 'u2']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def file_text(given: str) -> str | None:
    """Return the content of the file with this path, or None if there is no such file."""
    try:
        return Path(given).read_text(encoding="utf-8") if Path(given).is_file() else None
    except UnicodeDecodeError:
        raise InputError(f"{given} is not UTF-8 text") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def read_names(given: list[str] | None, existing: Collection[str], option: str) -> list[str] | None:
    """Return the names that an option gives, or None if it is not used.

    Each text is one of the ``existing`` names, several names separated by commas, or a file of names.
    """
    if given is None:
        return None
    names: list[str] = []
    for text in given:
        if text in existing:  # first, because a name may contain commas
            names.append(text)
        elif (content := file_text(text)) is not None:
            names += [line.strip() for line in content.splitlines() if line.strip()]
        else:
            names += parts(text)
    if not names:
        raise InputError(f"{option} gives no name; leave it out to use all")
    return names


def _pairs(texts: list[str]) -> dict[str, str]:
    from headstart.table.columns import COLUMN_TYPES

    pairs = {}
    for text in texts:
        # A name may contain "=", and so may the folder of a model: what follows the right one is a type.
        places = [place for place, letter in enumerate(text) if letter == "="]
        fitting = [at for at in places if text[at + 1 :].partition(":")[0] in COLUMN_TYPES]
        at = (fitting or places or [0])[-1]
        name, kind = text[:at], text[at + 1 :]
        if not (name and kind):
            raise InputError(f"--metadata-type must be NAME=TYPE, such as year=category; got {text!r}")
        pairs[name] = kind
    return pairs
