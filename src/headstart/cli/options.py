"""Define the options that commands share, and parse their texts."""

from __future__ import annotations

import errno
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from headstart.model import Headstart
    from headstart.table import Table


Observations = Annotated[
    Path, typer.Argument(help="CSV or Parquet file, long (row, feature, value) or wide.", show_default=False)
]

Model = Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)]

Metadata = Annotated[
    Path | None, typer.Option("--metadata", help="CSV or Parquet file of metadata, one line per feature.")
]

RowMetadata = Annotated[
    Path | None, typer.Option("--row-metadata", help="CSV or Parquet file of metadata, one line per row.")
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

TimeColumn = Annotated[
    str | None,
    typer.Option("--time", help="Column that says when an observation was made: numbers or dates."),
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

TrainingDevice = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Where training is computed: cpu, cuda, or cuda:1 and so on. The model can be used without it.",
        show_default="cpu",
    ),
]

NAMES_HELP = "A name, several names separated by commas, or a file with one name per line. Can be repeated."

Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress and no messages.")]


def read_table(
    observations: Path,
    metadata: Path | None,
    columns: tuple[str | None, str | None, str | None],
    kinds: list[str] | None,
    form: Any,
    duplicates: Any,
    metadata_types: list[str] | None,
    text: tuple[str | None, str | None, str | None],
    *,
    quiet: bool,
    row_metadata: Path | None = None,
    time: str | None = None,
) -> Table:
    """Read a table as the options say.

    ``columns`` are the columns of row, feature and value, ``text`` the separator, decimal point and encoding.
    """
    from headstart.table import Table

    row, feature, value = columns
    separator, decimal, encoding = text
    return Table.read(
        observations,
        metadata=metadata,
        row_metadata=row_metadata,
        row=row,
        feature=feature,
        value=value,
        time=time,
        form=form,
        kinds=_kinds(kinds or []),
        metadata_types=_pairs(metadata_types or []),
        duplicates=duplicates,
        quiet=quiet,
        separator=separator,
        decimal=decimal,
        encoding=encoding,
    )


def read_rows(
    path: Path,
    columns: tuple[str | None, str | None, str | None],
    text: tuple[str | None, str | None, str | None],
) -> dict[str, dict[str, float]]:
    """Read the observations of rows that are not in a model, as {row: {feature: value}}."""
    table = read_table(path, None, columns, ["real"], "long", "error", None, text, quiet=True)
    rows: dict[str, dict[str, float]] = {name: {} for name in table.rows}
    for row, feature, value in zip(table.row_index, table.feature_index, table.values.tolist(), strict=True):
        rows[table.rows[row]][table.features[feature]] = value
    return rows


def whole_numbers(text: str, option: str) -> list[int]:
    """Read whole numbers that are separated by commas."""
    try:
        return [int(part) for part in parts(text)]
    except ValueError:
        raise InputError(f"{option} must be whole numbers separated by commas; got {text!r}") from None


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
    except ValueError:  # a null character: not a path
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise InputError(f"{given} cannot be read: {error.strerror or error}") from error


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


def _kinds(texts: list[str]) -> dict[str | None, str] | str | None:
    """Return the kind of all features, or the kinds of single features and, by None, that of the others.

    >>> _kinds(["real", "a=b=rating:1:5"]), _kinds(["real"])
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


def _pairs(texts: list[str]) -> dict[str, str]:
    from headstart.table.columns import COLUMN_TYPES

    pairs: dict[str, str] = {}
    for text in texts:
        # A name may contain "=", and so may the folder of a model: what follows the right one is a type.
        places = [place for place, letter in enumerate(text) if letter == "="]
        fitting = [at for at in places if text[at + 1 :].partition(":")[0] in COLUMN_TYPES]
        at = (fitting or places or [0])[-1]
        name, kind = text[:at], text[at + 1 :]
        if not (name and kind):
            raise InputError(f"--metadata-type must be NAME=TYPE, such as year=category; got {text!r}")
        if name in pairs:
            raise InputError(
                f"--metadata-type gives {name!r} two types: {pairs[name]!r} and {kind!r}; keep one"
            )
        pairs[name] = kind
    return pairs


SECTIONS = ("backbone", "adapter", "pretraining", "metatraining")

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="A setting of the backbone, adapter, pretraining or metatraining, such as "
        "metatraining.epochs=20 or backbone.latent=16. Can be repeated.",
    ),
]


def read_settings(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    """Return the settings by section; a value is JSON, or else text.

    >>> read_settings(["metatraining.epochs=20", "metatraining.shots=log"])["metatraining"]
    {'epochs': 20, 'shots': 'log'}
    """
    found: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for text in texts or []:
        place, equals, value = text.partition("=")
        section, dot, name = place.strip().partition(".")
        if not (equals and dot and name and value.strip()):
            raise InputError(
                f"--set must be SECTION.NAME=VALUE, such as metatraining.epochs=20; got {text!r}"
            )
        if section not in found:
            hint = did_you_mean(section, SECTIONS) or f"; there are {', '.join(SECTIONS)}"
            raise InputError(f"--set: there is no section {section!r}{hint}")
        if name in found[section]:
            raise InputError(f"--set gives {section}.{name} twice; keep one")
        try:
            found[section][name] = json.loads(value)
        except json.JSONDecodeError:
            found[section][name] = value.strip()
    return found


def configured_model(
    backbone: str,
    adapter: str,
    given: list[str] | None,
    meta_share: float | None,
    seed: int,
    *,
    quiet: bool,
    half_life: str | None = None,
    device: str | None = None,
) -> Headstart:
    """Check all that is set for training and return a model that is yet to be fitted."""
    from headstart.adapters.base import adapter_config
    from headstart.backbones.base import backbone_config
    from headstart.core.devices import training_device
    from headstart.model import Headstart
    from headstart.model.state import Settings
    from headstart.table.times import half_life_of
    from headstart.training.meta_training import MetaTrainingConfig
    from headstart.training.pretraining import PretrainingConfig
    from headstart.training.recipe import AUTO

    own = read_settings(given)
    training_device(device)
    if adapter == AUTO and own["adapter"]:
        raise InputError(
            "--set adapter.… goes with an adapter of your choice, as --adapter chn; not with auto"
        )
    checked = Settings(
        backbone=backbone_config(backbone).revised(**own["backbone"]),
        adapter=AUTO if adapter == AUTO else adapter_config(adapter, seed).revised(**own["adapter"]),
        pretraining=PretrainingConfig.of(own["pretraining"]),
        metatraining=MetaTrainingConfig.of(own["metatraining"]),
        meta_share=meta_share,
        random_state=seed,
        half_life=half_life_of(half_life),
    )
    return Headstart(
        checked.backbone,
        checked.adapter,
        checked.pretraining,
        checked.metatraining,
        meta_share=meta_share,
        random_state=seed,
        quiet=quiet,
        half_life=checked.half_life,
        device=device,
    )
