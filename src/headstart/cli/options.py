"""Define the options that commands share, and read the files and names that they give."""

from __future__ import annotations

import errno
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headstart.errors import InputError

if TYPE_CHECKING:
    from headstart.table import Table
    from headstart.table.reading import Columns
    from headstart.table.sources import TextFormat

# -- single arguments and options ---------------------------------------------------------------------

Model = Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)]

Feature = Annotated[str, typer.Argument(help="Name of the feature.", show_default=False)]

Row = Annotated[str, typer.Argument(help="Name of the row.", show_default=False)]


def path_or_address(text: str) -> Any:
    """Return the address of a file (``s3://…``) as text, and any other text as a path."""
    from headstart.table.sources import is_address

    return text if is_address(text) else Path(text)


Observations = Annotated[
    Any,  # a path or a text: typer before 0.27 converts the values of an argument of type Path to paths
    typer.Argument(
        help="CSV, Parquet, SPSS, Stata, SAS or Excel file or its address, long or wide.",
        show_default=False,
        parser=path_or_address,
    ),
]

LongObservations = Annotated[
    Any,
    typer.Argument(
        help="CSV or Parquet file with the columns row, feature and value.",
        show_default=False,
        parser=path_or_address,
    ),
]

NAMES_HELP = "A name, several names separated by commas, or a file with one name per line. Can be repeated."

FeatureNames = Annotated[list[str] | None, typer.Option("--features", help=NAMES_HELP)]

RowNames = Annotated[list[str] | None, typer.Option("--rows", help=NAMES_HELP)]

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

RowColumn = Annotated[
    str | None, typer.Option("--row", help="Column with the name of the row.", show_default="row")
]

FeatureColumn = Annotated[
    str | None, typer.Option("--feature", help="Column with the name of the feature.", show_default="feature")
]

ValueColumn = Annotated[
    str | None, typer.Option("--value", help="Column with the value.", show_default="value")
]

TableKind = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND|FEATURE=KIND",
        help="Kind of all features, such as rating:1:5, or of one feature, such as age=real. "
        "Can be repeated. Other kinds are inferred.",
    ),
]

Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        help="Character between the fields of text files, or tab. By default it is detected from the header.",
    ),
]

Decimal = Annotated[
    str | None, typer.Option("--decimal", help="Decimal point of text files.", show_default=".")
]

Encoding = Annotated[
    str | None,
    typer.Option("--encoding", help="Encoding of text files, such as latin-1.", show_default="utf-8"),
]

Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        metavar="CODES",
        help="Values that mean 'not observed', separated by commas, such as -9,99,refused. Can be repeated.",
    ),
]

NotApplicable = Annotated[
    list[str] | None,
    typer.Option(
        "--not-applicable",
        metavar="CODES",
        help="Values that mean that a feature does not apply to a row, such as -8,n/a: never predicted.",
    ),
]

Form = Annotated[
    str, typer.Option("--form", help="long (row, feature, value), wide (one column per feature) or auto.")
]

Duplicates = Annotated[
    str,
    typer.Option(
        "--duplicates", help="What to do with several values of one cell: error, last, mean or sum."
    ),
]

MetadataTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata-type",
        metavar="NAME=TYPE",
        help="Type of a metadata column: number, date, category, labels, text, vector or ignore. "
        "text:MODEL names a sentence encoder or its folder; text:static averages word pieces; "
        "text:128 hashes words into 128 numbers. Can be repeated.",
    ),
]

BackboneName = Annotated[str, typer.Option("--backbone", help="factorisation, pvae or feedforward.")]

Shots = Annotated[
    str,
    typer.Option("--shots", help="Numbers of observations of a new feature, separated by commas."),
]

Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no messages.")]

# -- groups of options --------------------------------------------------------------------------------


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters are single options, as typer requires.

    A parameter of ``command`` whose type is a dataclass is a group of options: each field becomes an option
    of the returned command, which calls ``command`` with an instance of the dataclass.
    """

    @functools.wraps(command)
    def run(**options: Any) -> None:
        _call(command, options)

    parameters = list(_parameters(command))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a command or group; in place of a group, those of the group."""
    types = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(types[name]):
            yield from _parameters(types[name])
        else:
            yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[name])


def _call(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a command or create a group from the options that it needs."""
    types = get_type_hints(function, include_extras=True)
    names = inspect.signature(function).parameters
    return function(
        **{
            name: _call(types[name], options) if is_dataclass(types[name]) else options[name]
            for name in names
        }
    )


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """The columns of a file in the long form."""

    row: RowColumn = None
    feature: FeatureColumn = None
    value: ValueColumn = None

    @property
    def names(self) -> Columns:
        """The columns as the table's readers take them."""
        from headstart.table.reading import Columns

        return Columns(self.row, self.feature, self.value)


def _split_codes(given: list[str] | None) -> list[str] | None:
    """Return the codes of an option that can be repeated, one by one."""
    return None if given is None else [code for text in given for code in split_commas(text)]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The format of text files, and codes for missing values."""

    separator: Separator = None
    decimal: Decimal = None
    encoding: Encoding = None
    missing: Missing = None

    @property
    def missing_codes(self) -> list[str] | None:
        """The codes for missing values, one by one."""
        return _split_codes(self.missing)

    @property
    def format(self) -> TextFormat:
        """The format as the table's readers take it."""
        from headstart.table.missing_values import MissingCodes
        from headstart.table.sources import TextFormat

        missing = MissingCodes.of(self.missing_codes)
        return TextFormat(self.separator, self.decimal, self.encoding, missing)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How to read a file of observations."""

    columns: ColumnOptions
    weight: Annotated[
        str | None,
        typer.Option("--weight", help="Column of weights, numbers above 0: how much an observation counts."),
    ] = None
    kind: TableKind = None
    form: Form = "auto"
    duplicates: Duplicates = "error"
    not_applicable: NotApplicable = None
    text: TextOptions

    def read(
        self,
        observations: Path,
        *,
        quiet: bool,
        metadata: Path | None = None,
        metadata_types: list[str] | None = None,
        row_metadata: Path | None = None,
        time: str | None = None,
    ) -> Table:
        """Read a table from a file of observations and files of metadata."""
        from headstart.table import Table

        return Table.read(
            observations,
            metadata=metadata,
            row_metadata=row_metadata,
            row=self.columns.row,
            feature=self.columns.feature,
            value=self.columns.value,
            time=time,
            weight=self.weight,
            form=self.form,  # type: ignore[arg-type]  # Table.read checks it
            kinds=_parse_kinds(self.kind or []),
            metadata_types=_parse_types(metadata_types or []),
            duplicates=self.duplicates,  # type: ignore[arg-type]  # Table.read checks it
            quiet=quiet,
            separator=self.text.separator,
            decimal=self.text.decimal,
            encoding=self.text.encoding,
            missing=self.text.missing_codes,
            not_applicable=_split_codes(self.not_applicable),
        )


@dataclass(frozen=True, kw_only=True)
class NewRowOptions:
    """A file of observations of rows that are not in the model."""

    new_rows: Annotated[
        Path | None, typer.Option(help="File of observations of rows that are not in the model.")
    ] = None
    columns: ColumnOptions
    text: TextOptions

    def read(self) -> dict[str, dict[str, float]] | None:
        """Return the observations as ``{row: {feature: value}}``, or None if the option is not used."""
        return None if self.new_rows is None else read_rows(self.new_rows, self.columns, self.text)


# -- reading the texts of options ---------------------------------------------------------------------


def read_rows(path: Path, columns: ColumnOptions, text: TextOptions) -> dict[str, dict[str, float]]:
    """Read the observations of rows that are not in a model, as ``{row: {feature: value}}``."""
    options = TableOptions(columns=columns, kind=["real"], form="long", text=text)
    table = options.read(path, quiet=True)
    rows: dict[str, dict[str, float]] = {name: {} for name in table.rows}
    for row, feature, value in zip(table.row_index, table.feature_index, table.values.tolist(), strict=True):
        rows[table.rows[row]][table.features[feature]] = value
    return rows


def whole_numbers(text: str, option: str) -> list[int]:
    """Read the whole numbers that ``option`` gives, separated by commas."""
    try:
        return [int(part) for part in split_commas(text)]
    except ValueError:
        raise InputError(f"{option} must be whole numbers separated by commas; got {text!r}") from None


def split_commas(text: str) -> list[str]:
    """Split a text at its commas.

    >>> split_commas("u1, u2,")
    ['u1', 'u2']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def read_text(path: str) -> str | None:
    """Return the content of the file with this path, or None if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except ValueError:  # a null character: not a path
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def read_names(texts: list[str] | None, existing: Collection[str], option: str) -> list[str] | None:
    """Return the names that ``option`` gives, or None if it is not used.

    Each of ``texts`` is one of the ``existing`` names, several names separated by commas, or a file of names.
    """
    if texts is None:
        return None
    names: list[str] = []
    for text in texts:
        if text in existing:  # first, because a name may contain commas
            names.append(text)
        elif (content := read_text(text)) is not None:
            names += [line.strip() for line in content.splitlines() if line.strip()]
        else:
            names += split_commas(text)
    if not names:
        raise InputError(f"{option} gives no name; leave it out to use all")
    return names


def _parse_kinds(texts: list[str]) -> dict[str | None, str] | str | None:
    """Return the kind of all features, or a mapping of features to kinds; None stands for all others.

    >>> _parse_kinds(["real", "a=b=rating:1:5"]), _parse_kinds(["real"])
    ({None: 'real', 'a=b': 'rating:1:5'}, 'real')
    """
    kinds: dict[str | None, str] = {}
    for text in texts:
        name, equals, kind = text.rpartition("=")
        if equals and not (name and kind):
            raise InputError(f"--kind must be KIND or FEATURE=KIND, such as age=real; got {text!r}")
        key = name if equals else None
        if key in kinds:
            owner = "all features" if key is None else repr(key)
            raise InputError(f"--kind gives {owner} two kinds: {kinds[key]!r} and {kind!r}; keep one")
        kinds[key] = kind
    return kinds[None] if list(kinds) == [None] else kinds or None


def _parse_types(texts: list[str]) -> dict[str, str]:
    """Return the types of metadata columns by name.

    >>> _parse_types(["year=category", "plot=text:128"])
    {'year': 'category', 'plot': 'text:128'}
    """
    from headstart.table.metadata import COLUMN_TYPES

    pairs: dict[str, str] = {}
    for text in texts:
        # The name of a column may contain "=", and so may the folder of an encoder: split before a type.
        positions = [position for position, letter in enumerate(text) if letter == "="]
        before_type = [i for i in positions if text[i + 1 :].partition(":")[0] in COLUMN_TYPES]
        split = (before_type or positions or [0])[-1]
        name, kind = text[:split], text[split + 1 :]
        if not (name and kind):
            raise InputError(f"--metadata-type must be NAME=TYPE, such as year=category; got {text!r}")
        if name in pairs:
            raise InputError(
                f"--metadata-type gives {name!r} two types: {pairs[name]!r} and {kind!r}; keep one"
            )
        pairs[name] = kind
    return pairs
