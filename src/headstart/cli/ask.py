"""Commands that read a saved model: predict, rank, explain, describe, check and evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.options import (
    NAMES_HELP,
    Feature,
    FeatureNames,
    Metadata,
    Model,
    NewRowOptions,
    Observations,
    Row,
    RowNames,
    TableOptions,
    read_names,
    whole_numbers,
)
from headstart.cli.output import MAX_LINES, Destination, OutputOptions, say, show, show_facts, show_results
from headstart.display import count
from headstart.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

    from headstart.model import Headstart


Number = Annotated[int, typer.Option("-n", help="Length of the list.", min=1)]

_BY_HELP = (
    "mean, lower or upper (quantiles: avoid or prefer the uncertain), sample, lift, relevance (high values "
    "of popular features) or information."
)

By = Annotated[str, typer.Option("--by", help=_BY_HELP)]

ByOrDefault = Annotated[
    str | None, typer.Option("--by", help=_BY_HELP, show_default="mean, or relevance if it ranks better")
]

Level = Annotated[float, typer.Option(help="Probability that the interval contains the value.")]

IncludeObserved = Annotated[
    bool, typer.Option("--include-observed", help="Include cells that are observed already.")
]

MixedKinds = Annotated[
    bool, typer.Option("--mixed-kinds", help="Compare features of different kinds, on a common scale.")
]


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """How to rank features or rows."""

    n: Number = 10
    by: ByOrDefault = None
    quantile: Annotated[float, typer.Option(help="The quantile that --by upper takes.")] = 0.9
    seed: Annotated[int, typer.Option(help="The seed of --by sample.", min=0)] = 0
    include_observed: IncludeObserved = False
    exclude: Annotated[list[str] | None, typer.Option(help=f"To leave out. {NAMES_HELP}")] = None
    where: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE: metadata to have; repeat it for several columns or values."),
    ] = None
    level: Level = 0.9

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that ``Headstart.recommend_many`` and ``Headstart.audience`` share."""
        return {
            "n": self.n,
            **({} if self.by is None else {"by": self.by}),
            "quantile": self.quantile,
            "random_state": self.seed,
            "exclude_observed": not self.include_observed,
            "where": self._filters(),
            "level": self.level,
        }

    def _filters(self) -> dict[str, list[str]] | None:
        """Return the wanted values of each metadata column."""
        filters: dict[str, list[str]] = {}
        for text in self.where or []:
            column, equals, value = text.partition("=")
            if not equals or not column:
                raise InputError(f"--where must be COLUMN=VALUE; got {text!r}")
            filters.setdefault(column, []).append(value)
        return filters or None


def recommend(
    model: Model,
    rows: Annotated[list[str] | None, typer.Argument(help="Names of rows.", show_default=False)] = None,
    *,
    features: FeatureNames = None,
    ranking: RankingOptions,
    mixed_kinds: MixedKinds = False,
    new: NewRowOptions,
    output: OutputOptions,
) -> None:
    """List the features that suit rows best, best first.

    Example: [bold]headstart recommend films.headstart u17 -n 5[/bold]
    """
    from headstart.model import Headstart

    if bool(rows) == (new.new_rows is not None):
        raise InputError("name rows, or give --new-rows; one of the two")
    destination = output.destination()
    loaded = Headstart.load(model)
    rankings = loaded.recommend_many(
        rows or new.read(),
        features=read_names(features, loaded.features, "--features"),
        mixed_kinds=mixed_kinds,
        exclude=read_names(ranking.exclude, loaded.features, "--exclude") or (),
        **ranking.arguments(),
    )
    destination.write(_join_rankings("row", list(rankings.values())))


def audience(
    model: Model,
    feature: Feature,
    *,
    rows: RowNames = None,
    ranking: RankingOptions,
    output: OutputOptions,
) -> None:
    """List the rows that a feature suits best, best first.

    Example: [bold]headstart audience films.headstart "Dune 3" -n 20 --by upper[/bold]
    """
    from headstart.model import Headstart

    destination = output.destination()
    loaded = Headstart.load(model)
    ranked = loaded.audience(
        _find_feature(loaded, feature),
        rows=read_names(rows, loaded.rows, "--rows"),
        exclude=read_names(ranking.exclude, loaded.rows, "--exclude") or (),
        **ranking.arguments(),
    )
    destination.write(_join_rankings("feature", [ranked]))


def suggest(
    model: Model,
    feature: Feature,
    n: Number = 10,
    rows: RowNames = None,
) -> None:
    """List the rows whose observation would improve a feature's predictions most; best first.

    Example: [bold]headstart suggest films.headstart "Dune 3" -n 5[/bold]
    """
    from headstart.model import Headstart

    loaded = Headstart.load(model)
    for row in loaded.suggest(_find_feature(loaded, feature), n, read_names(rows, loaded.rows, "--rows")):
        typer.echo(row)


def similar(model: Model, feature: Feature, n: Number = 10, *, output: OutputOptions) -> None:
    """List the features whose predictions are most alike, with their correlation.

    Example: [bold]headstart similar films.headstart "Dune 3"[/bold]
    """
    from headstart.model import Headstart

    destination = output.destination()
    loaded = Headstart.load(model)
    similar_features = loaded.similar(_find_feature(loaded, feature), n)
    destination.write(similar_features.to_arrow(), {"similarity": "+.3f"})


def explain(
    model: Model,
    row: Row,
    feature: Feature,
    *,
    picture: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file to draw.")] = None,
    output: OutputOptions,
) -> None:
    """Say which observations and which metadata made a prediction, as contributions that add up.

    Example: [bold]headstart explain films.headstart u17 "Dune 3" --picture why.png[/bold]
    """
    from headstart.files import write_bytes
    from headstart.model import Headstart

    destination = output.destination()
    if picture is not None and picture.suffix.lower() not in _PICTURES:
        raise InputError(f"--picture must end in .png, .svg or .pdf; got {picture.name!r}")
    loaded = Headstart.load(model)
    explanation = loaded.explain(row, _find_feature(loaded, feature))
    if destination.format == "table":
        typer.echo(str(explanation))
    else:
        destination.write(explanation.to_arrow())
    if picture is not None:
        import io

        buffer = io.BytesIO()
        explanation.plot().figure.savefig(buffer, format=picture.suffix.lower().removeprefix("."))
        write_bytes(picture, buffer.getvalue())
        destination.say(f"drew {picture}")


_PICTURES = (".png", ".svg", ".pdf")


def _join_rankings(owner: str, rankings: list[Any]) -> pa.Table:
    """Return the lines of all rankings; the column ``owner`` names the row or feature of each ranking."""
    import numpy as np
    import pyarrow as pa

    from headstart.table.arrow_columns import number_column, text_column

    parts = []
    for ranking in rankings:
        lines = ranking.to_arrow()
        places = number_column(np.arange(1, len(lines) + 1))
        owners = text_column([ranking.of] * len(lines))
        parts.append(lines.add_column(0, "place", places).add_column(0, owner, owners))
    return pa.concat_tables(parts)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How to write a folder of predictions, part by part."""

    engine: Annotated[
        str | None,
        typer.Option(
            help="local or ray (several processes or machines): write a folder of Parquet files, part by "
            "part."
        ),
    ] = None
    pairs: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet file, or folder of Parquet files, of the cells to predict."),
    ] = None
    top: Annotated[
        int | None, typer.Option(help="Number of features to write for each row, the best ones.", min=1)
    ] = None
    by: By = "mean"
    include_observed: IncludeObserved = False
    mixed_kinds: MixedKinds = False
    workers: Annotated[int | None, typer.Option(help="Number of Ray workers.", min=1)] = None
    partition_size: Annotated[
        int | None, typer.Option(help="Largest number of records (rows or cells) in one file.", min=1)
    ] = None
    device: Annotated[str | None, typer.Option(help="Where predictions are computed: cpu or cuda.")] = None

    def require_unused(self) -> None:
        """Raise an error for the first option that needs ``--engine``."""
        used = {
            "--pairs": self.pairs is not None,
            "--top": self.top is not None,
            "--workers": self.workers is not None,
            "--device": self.device is not None,
            "--partition-size": self.partition_size is not None,
            "--by": self.by != "mean",
            "--include-observed": self.include_observed,
            "--mixed-kinds": self.mixed_kinds,
        }
        _require_unused(used, "{option} needs --engine local or --engine ray, which write a folder of files")

    def arguments(self, new: NewRowOptions) -> dict[str, Any]:
        """Return arguments of ``score``; the columns and the format of records are those of ``new``."""
        unread = {"--decimal": new.text.decimal is not None, "--missing": new.text.missing is not None}
        _require_unused(unread, "{option} has no meaning for names of rows and features; leave it out")
        return {
            "top": self.top,
            "by": self.by,
            "exclude_observed": not self.include_observed,
            "mixed_kinds": self.mixed_kinds,
            "pairs": self.pairs,
            "row": new.columns.row,
            "feature": new.columns.feature,
            "separator": new.text.separator,
            "encoding": new.text.encoding,
            "engine": self.engine,
            "workers": self.workers,
            "partition_size": self.partition_size,
            "device": self.device,
        }


def predict(
    model: Model,
    *,
    rows: Annotated[
        list[str] | None,
        typer.Option(help=f"{NAMES_HELP} With --engine also a table with a column of names."),
    ] = None,
    features: FeatureNames = None,
    new: NewRowOptions,
    level: Level = 0.9,
    form: Annotated[
        str,
        typer.Option(
            "--form", help="long: one line per cell. wide: one line per row, with the mean of each feature."
        ),
    ] = "long",
    keep_observed: Annotated[
        bool, typer.Option("--keep-observed", help="With --form wide, write observed values in their cells.")
    ] = False,
    engine: EngineOptions,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of every label instead.")
    ] = False,
    output: OutputOptions,
) -> None:
    """Predict the values of rows at features. By default all rows and features are predicted.

    Without --out the predictions are printed. For very many, --engine writes a folder of Parquet files, part
    by part; after an interruption, the same command goes on.

    Example: [bold]headstart predict films.headstart --rows u1,u2 --features "Dune 3" --out dune.csv[/bold]

    Example: [bold]headstart predict films.headstart --form wide --keep-observed --out filled.csv[/bold]

    Example: [bold]headstart predict films.headstart --engine ray --top 10 --out best[/bold]
    """
    if form not in ("long", "wide"):
        raise InputError(f"--form must be long or wide; got {form!r}")
    if keep_observed and form == "long":
        raise InputError("--keep-observed needs --form wide")
    if engine.engine is not None:
        refused = {
            "--format": output.format is not None,
            "--new-rows": new.new_rows is not None,
            "--form wide": form == "wide",
            "--probabilities": probabilities,
        }
        _require_unused(refused, "--engine takes no {option}")
        _score(model, rows, features, output, {"level": level, **engine.arguments(new)})
        return
    engine.require_unused()
    if rows is not None and new.new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    if probabilities and form == "wide":
        raise InputError("--probabilities has one line for each label; leave out --form wide")
    _predict_at_once(model, rows, features, new, level, form, keep_observed, probabilities, output)


def _require_unused(used: Mapping[str, bool], message: str) -> None:
    """Raise an error for the first option that is used; ``message`` names it as {option}."""
    for option, is_used in used.items():
        if is_used:
            raise InputError(message.format(option=option))


def _predict_at_once(
    model: Path,
    rows: list[str] | None,
    features: list[str] | None,
    new: NewRowOptions,
    level: float,
    form: str,
    keep_observed: bool,
    probabilities: bool,
    output: OutputOptions,
) -> None:
    """Predict all cells together, and print or write them; the parameters are options of ``predict``."""
    from headstart.model import Headstart

    destination = output.destination()
    loaded = Headstart.load(model)
    new_rows = new.read()
    prediction = loaded.predict(
        read_names(rows, loaded.rows, "--rows") if new_rows is None else new_rows,
        read_names(features, loaded.features, "--features"),
    )
    if probabilities:
        if not prediction.labelled:
            raise InputError("--probabilities is for features with labels; none of these has any")
        destination.write(prediction.probabilities_to_arrow(), {"probability": ".3f"})
        return
    if form == "wide":
        observed = new_rows if new_rows is not None else loaded.table(metadata=False)
        destination.write(prediction.to_wide(observed if keep_observed else None))
        return
    lines = prediction.to_arrow(level)
    if destination.path is None and destination.format == "table":
        _show_predictions(lines, level, destination)
    else:
        destination.write(lines)


Seed = Annotated[int, typer.Option("--seed", help="The seed of the draws.", min=0)]


def sample(
    model: Model,
    *,
    rows: RowNames = None,
    features: FeatureNames = None,
    n: Annotated[int, typer.Option("-n", help="Number of draws.", min=1)] = 1,
    seed: Seed = 0,
    new: NewRowOptions,
    output: OutputOptions,
) -> None:
    """Draw the values of rows at features jointly: one line per draw, row and feature.

    Functions of several cells, such as sums, have the right uncertainty. A category is drawn as a level.

    Example: [bold]headstart sample films.headstart --rows u1,u2 --features Alien -n 100 --out d.csv[/bold]
    """
    import numpy as np
    import pyarrow as pa

    from headstart.model import Headstart
    from headstart.model.imputation import with_levels

    if rows is not None and new.new_rows is not None:
        raise InputError("give either --rows or --new-rows, not both")
    destination = output.destination()
    loaded = Headstart.load(model)
    named_rows = read_names(rows, loaded.rows, "--rows") if new.new_rows is None else new.read()
    row_names = list(loaded.rows if named_rows is None else named_rows)
    names = read_names(features, loaded.features, "--features") or loaded.features
    drawn = loaded.sample(named_rows, names, n, random_state=seed)
    kinds = [loaded.feature(name).kind for name in names]
    texts = np.array(with_levels(drawn, kinds), dtype=object)
    levels = texts.size > 0 and any(isinstance(value, str) for value in texts[0, 0])
    values = [str(value) for value in texts.ravel()] if levels else drawn.ravel()
    lines = {
        "draw": np.repeat(np.arange(1, n + 1), len(row_names) * len(names)),
        "row": np.tile(np.repeat(np.array(row_names, object), len(names)), n).tolist(),
        "feature": list(names) * (n * len(row_names)),
        "value": values,
    }
    destination.write(pa.table(lines))


def impute(
    model: Model,
    *,
    rows: RowNames = None,
    features: FeatureNames = None,
    m: Annotated[int, typer.Option("-m", help="Number of filled tables.", min=1)] = 20,
    seed: Seed = 0,
    output: OutputOptions,
) -> None:
    """Fill the missing cells of the model's table several times (multiple imputation).

    One line per filled table and row, with one column per feature. Observed cells have their values.

    Example: [bold]headstart impute survey.headstart -m 20 --out filled.parquet[/bold]
    """
    import pyarrow as pa

    from headstart.model import Headstart

    destination = output.destination()
    loaded = Headstart.load(model)
    filled = loaded.impute(
        m,
        rows=read_names(rows, loaded.rows, "--rows"),
        features=read_names(features, loaded.features, "--features"),
        random_state=seed,
    )
    tables = []
    for number in range(m):
        table = filled.to_arrow(number)
        tables.append(table.add_column(0, "imputation", pa.array([number + 1] * len(table), pa.int64())))
    destination.write(pa.concat_tables(tables))


def _score(
    model: Path,
    rows: list[str] | None,
    features: list[str] | None,
    output: OutputOptions,
    settings: dict[str, Any],
) -> None:
    """Predict in partitions into a folder; ``settings`` are the further arguments of ``score``."""
    from headstart.model import Headstart
    from headstart.scoring import score

    if output.out is None or output.out == "-":
        raise InputError("--engine writes a folder of Parquet files; name it with --out")
    loaded = Headstart.load(model, verify=False)
    records = Path(rows[0]) if rows is not None and len(rows) == 1 and _is_records(rows[0]) else None
    scored = score(
        model,
        output.out,
        rows=read_names(rows, loaded.rows, "--rows") if records is None else records,
        features=read_names(features, loaded.features, "--features"),
        quiet=output.quiet,
        **settings,
    )
    if not output.quiet:
        say(str(scored))


def _is_records(text: str) -> bool:
    """Return whether a text is the path of a table or a folder, and not of a list of names."""
    from headstart.table.sources import TABLES

    path = Path(text)
    return path.is_dir() or (path.is_file() and path.name.lower().endswith(TABLES))


def _show_predictions(table: pa.Table, level: float, destination: Destination) -> None:
    labelled = "label" in table.column_names
    lines = []
    for line in table.slice(0, MAX_LINES).to_pylist():
        numbers = (f"{line['mean']:.3f}", f"{line['std']:.3f}", f"{line['low']:.2f} – {line['high']:.2f}")
        if line["mean"] != line["mean"]:  # a category has no mean
            numbers = ("", "", "")
        label = (line["label"] if labelled else None) or ""
        if label and line["probability"] is not None:
            label += f" ({line['probability']:.0%})"
        lines.append((line["row"], line["feature"], *numbers, *([label] if labelled else [])))
    header = ("row", "feature", "mean", "std", f"{level:.0%} interval")
    show((*header, *(["most probable"] if labelled else [])), lines)
    if len(table) > MAX_LINES:
        destination.say(f"… and {len(table) - MAX_LINES} more; use --out FILE to write all of them")


Search = Annotated[
    str | None,
    typer.Option("--search", help="Only names and titles that contain this text. Case is ignored."),
]


def info(model: Model) -> None:
    """Describe a saved model.

    Example: [bold]headstart info films.headstart[/bold]
    """
    from headstart.model import Headstart

    info = Headstart.load(model).info
    facts = [("usual kind", info.kind), ("columns", info.columns), ("latest", ", ".join(info.latest))]
    show_facts([("model", str(model)), *info.lines(), *facts])


def card(
    model: Model,
    out: Annotated[
        Path | None, typer.Option("--out", help="Markdown (.md) or HTML file to write, in place of printing.")
    ] = None,
) -> None:
    """Describe a saved model on one page, to pass on with it: data, expected errors, calibration, staleness.

    Example: [bold]headstart card films.headstart --out card.md[/bold]
    """
    from headstart.evaluate.reports import page
    from headstart.files import write_bytes
    from headstart.model.card import describe_on_card
    from headstart.model.saving.loading import check_model, describe_files

    if out is not None and out.suffix.lower() not in (".md", ".html"):
        raise InputError(f"--out must end in .md or .html; got {out.name!r}")
    checked = check_model(model)
    described = describe_on_card(checked.model, describe_files(model, checked))
    title = f"Model card of {model.name}"
    if out is None:
        say(str(described))
    else:
        is_page = out.suffix.lower() == ".html"
        text = page(title, [described.to_html()], footer="") if is_page else described.to_markdown(title)
        write_bytes(out, text.encode())
        say(f"wrote {out}")


def check(model: Model) -> None:
    """Read all of a saved model and say whether anything is damaged.

    Example: [bold]headstart check films.headstart[/bold]
    """
    from headstart.model.saving.loading import check_model

    checked = check_model(model)
    changes = 0 if checked.journal is None else len(checked.journal.changes)
    features = count(len(checked.model.feature_store.feature_names), "feature")
    rows = count(len(checked.model.rows), "row")
    say(f"{model} is whole: {features}, {rows}, {count(changes, 'change')} in its journal")


def features(model: Model, *, search: Search = None, output: OutputOptions) -> None:
    """List the features of a model: kind, observations, metadata.

    Example: [bold]headstart features films.headstart --search dune[/bold]
    """
    import numpy as np
    import pyarrow as pa

    from headstart.model import Headstart
    from headstart.model.titles import titles_of
    from headstart.table.arrow_columns import number_column, text_column

    destination = output.destination()
    loaded = Headstart.load(model)
    names = loaded.features if search is None else loaded.find_features(search)
    listed = [loaded.feature(name) for name in names]
    titles = titles_of([feature.metadata for feature in listed], loaded.words.title)
    columns: dict[str, Any] = {
        "feature": text_column([feature.name for feature in listed]),
        **({} if titles is None else {"title": text_column(titles)}),
        "kind": text_column([str(feature.kind) for feature in listed]),
        "observations": number_column(np.array([feature.shots for feature in listed], np.int64)),
        "added": text_column(["" if feature.in_backbone else "after fit" for feature in listed]),
    }
    for column in loaded.metadata_columns:
        if column not in columns:
            columns[column] = text_column([_text(feature.metadata.get(column)) for feature in listed])
    destination.write(pa.table(columns))


def rows(model: Model, *, search: Search = None, output: OutputOptions) -> None:
    """List the rows of a model, with the number of observations of each.

    Example: [bold]headstart rows films.headstart --search u1[/bold]
    """
    import pyarrow as pa

    from headstart.model import Headstart
    from headstart.table.arrow_columns import number_column, text_column

    destination = output.destination()
    loaded = Headstart.load(model)
    names = list(loaded.rows) if search is None else loaded.find_rows(search)
    titles = loaded.row_titles(names)
    columns = {} if titles is None else {"title": text_column(titles)}
    counts = number_column(loaded.observation_counts(names))
    destination.write(pa.table({"row": text_column(names), **columns, "observations": counts}))


def evaluate(
    model: Model,
    observations: Observations,
    *,
    metadata: Metadata = None,
    shots: Annotated[
        str | None,
        typer.Option(
            "--shots",
            help="Numbers of observations of a new feature, separated by commas.",
            show_default="0,1,2,4,8,16,32, as far as a feature has more",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", help="features or cells.", show_default="features, if any are new to the model"),
    ] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Score rankings by this criterion of recommend, too.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which observations are contexts.", min=0)] = 0,
    reading: TableOptions,
    output: OutputOptions,
) -> None:
    """Measure a saved model on observations that it has not seen: of new features, or cells of its own.

    The line row-column-means has the errors of shrunk row and column means on the same cells. --format json
    and --out have all metrics.

    Example: [bold]headstart evaluate films.headstart later.csv --row user --feature film --value stars[/bold]
    """
    import pyarrow as pa

    from headstart.model import Headstart

    destination = output.destination()
    numbers = None if shots is None else whole_numbers(shots, "--shots")
    loaded = Headstart.load(model)
    if reading.kind is None and len(loaded.kinds) == 1:  # held-out values could look like another kind
        reading = replace(reading, kind=[str(loaded.kinds[0])])
    table = reading.read(observations, quiet=True, metadata=metadata)
    results = loaded.evaluate(table, numbers, on=on, by=by, random_state=seed)  # type: ignore[arg-type]
    if destination.path is None and destination.format == "table":
        show_results(results)
    else:
        runs = sorted(results.runs, key=lambda run: (results.metrics.index(run.metric), run.n_observations))
        fields = ("method", "metric", "shots", "value", "features", "targets")
        lines = [{field: getattr(run, field) for field in fields} for run in runs]
        destination.write(pa.Table.from_pylist(lines))
    facts = results.data
    destination.say(f"on {facts['on']}: {facts['tested']} tested, {facts['left_out']} left out, "
              f"{facts['unknown_rows']} rows that the model does not know")  # fmt: skip


def _find_feature(model: Headstart, text: str) -> str:
    """Return the feature with this name or, if there is none, the only one with this title."""
    if text in model.features:
        return text
    return model.feature_with_title(text) or text


def _text(value: object) -> str | None:
    if value is None:
        return None
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)
