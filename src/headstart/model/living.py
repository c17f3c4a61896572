"""The verbs by which rows live: observing, adding, removing and renaming them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from headstart.errors import InputError, SurpriseWarning
from headstart.model.base import LOG, FittedModel
from headstart.model.changing.calls import adding_rows, observing
from headstart.model.changing.observing import Observed, Update, require_possible
from headstart.model.changing.population import added_rows, without_row
from headstart.model.changing.taking import taken
from headstart.model.inputs.frames import as_rows
from headstart.model.inputs.given import require_mapping, unique_names
from headstart.model.inputs.intake import Observations, context_of
from headstart.model.inputs.row_records import NewRows, encoded_rows
from headstart.model.inputs.triples import read_triples, triples_of
from headstart.model.parts.staleness import Staleness, staleness_of
from headstart.model.saving.exporting import table_of
from headstart.table import Table
from headstart.table.names import as_name
from headstart.table.readers import Columns
from headstart.table.sources import TextFormat


class Living(FittedModel):
    """Observing, adding and removing rows. Each happens as a whole, or raises and changes nothing."""

    def observe(
        self,
        name: object,
        observations: Observations | None = None,
        *,
        row: str | None = None,
        feature: str | None = None,
        value: str | None = None,
        time: object = None,
        update: Update | None = None,
        text: TextFormat | None = None,
    ) -> Observed:
        """Take more observations, of one feature or of any rows and features.

        ``observe(name, {row: value})`` refines one feature, and every other prediction stays as it was, bit
        for bit. ``observe([(row, feature, value), …])``, or a frame with these three columns, updates the
        rows and the features in it: first the rows, read by the heads of their features, then the features
        from the new states of their rows. An observation made before gets its new value.

        Parameters
        ----------
        name : str, int, list of (row, feature, value), frame or Path
            A feature of the model, or observations of any of its rows and features.
        observations : dict, default=None
            If ``name`` is a feature: its values by the names of rows.
        row, feature, value : str, default=None
            The columns of a frame or a file, "row", "feature" and "value" by default.
        time : str, number or date, default=None
            When the observations were made, if the model has a half-life: of a frame or file the column that
            says so, "time" by default; otherwise one time for all. A list may have (row, feature, value,
            time) instead.
        update : {"both", "features", "rows"}, default=None
            What to update. By default, one feature if ``name`` is a feature, otherwise both.
        text : TextFormat, default=None
            How a text file is written.

        Returns
        -------
        Observed
            Which features and rows were updated.

        Warns
        -----
        SurpriseWarning
            If a value lies more than 8 standard deviations from what was expected. It is taken, and
            intervals widen.
        """
        one = observations is not None or isinstance(name, (str, int))
        with self._writing:
            fitted = self._fitted
            if one:
                held = fitted.catalogue[name]
                if observations is None:
                    raise InputError(
                        f"observe({name!r}, …) needs the observations of this feature, as {{'u17': 5}}"
                    )
                side = update or "features"
                require_possible(fitted, [held], side)
                rows, values = context_of(held.name, observations, held.kind, fitted.rows)
                given = triples_of(fitted, held, rows, values, time)
            else:
                side = update or "both"
                given = read_triples(fitted, name, Columns(row, feature, value), text, time)
                require_possible(fitted, given.features, side)
            after, said, surprising = taken(fitted, given, side, one=one)
            if surprising is not None:  # before the change: a filter may make it an error
                warnings.warn(surprising, SurpriseWarning, stacklevel=2)
            self._change(after, lambda: observing(fitted, after, given, side))
            if one:
                LOG.debug("observed %d values of feature %r", said.observations, held.name)
            else:
                LOG.debug("observed: %s", said)
        return said

    def add_rows(
        self,
        rows: Mapping[Any, Observations] | Any,
        metadata: Mapping[Any, Mapping[str, Any]] | None = None,
        *,
        update: Update = "rows",
    ) -> None:
        """Add new rows by name, so that they can be predicted and observed like any other.

        Parameters
        ----------
        rows : dict or frame
            ``{row: {feature: value}}``, or a frame with the columns row, feature and value; a row may have
            no observations.
        metadata : dict, default=None
            ``{row: {column: value}}`` of these rows, if the table of the fit had row metadata.
        update : {"rows", "both"}, default="rows"
            Whether the observations only describe the new rows, or also refine the features in them. With
            "rows" no other prediction changes.
        """
        given = require_mapping(as_rows(rows, "add_rows()"), "add_rows()", "{'u99': {'Alien': 5}}")
        names = unique_names(given, "add_rows()", "row")
        if update not in ("rows", "both"):
            raise InputError(f"add_rows(): update must be 'rows' or 'both'; got {update!r}")
        with self._writing:
            fitted = self._fitted
            there = [name for name in names if name in fitted.rows]
            if there:
                raise InputError(f"row {there[0]!r} is already in the model")
            records, encoded = encoded_rows(fitted.row_metadata, names, metadata)
            new = NewRows(names, given, records, encoded, teach=update == "both")
            self._change(added_rows(fitted, new), lambda: adding_rows(fitted, new))
            LOG.info("added %d rows", len(names))

    def remove_row(self, name: object) -> None:
        """Remove a row, and its observations from every feature.

        The features that it observed get the heads that they would have without it. What training itself
        learned from the row stays in the backbone until the next ``fit``.

        Parameters
        ----------
        name : str or int
            A row of the model.
        """
        with self._writing:
            fitted = self._fitted
            place = fitted.rows.position(name)
            self._change(
                without_row(fitted, place), lambda: {"verb": "remove_row", "name": fitted.rows[place]}
            )
            LOG.info("removed row %r", name)

    def table(self, *, metadata: bool = True) -> Table:
        """Everything the model holds, as a table ready for the next ``fit``.

        Parameters
        ----------
        metadata : bool, default=True
            Whether the table has the metadata of the features.

        Returns
        -------
        Table
            All rows, features and observations: those of the table it was fitted on and those since.
        """
        return table_of(self._fitted, metadata=metadata)

    def staleness(self) -> Staleness:
        """Whether a refit would pay, from how well the model foresaw what was observed since ``fit``.

        Each observation is judged by the model as it was just before it was taken: its negative
        log-likelihood, less what the model itself expected of it.

        Returns
        -------
        Staleness
            The mean excess with its standard error, how much arrived, and whether to refit.
        """
        fitted = self._fitted
        return staleness_of(fitted.arrived, len(fitted.knowledge.cells.index))

    def rename_row(self, name: object, to: object) -> None:
        """Give a row another name; no prediction changes.

        Parameters
        ----------
        name : str or int
            A row of the model.
        to : str or int
            Its name from now on; no row may have it yet.
        """
        other = as_name(to, "row")
        with self._writing:
            fitted = self._fitted
            place = fitted.rows.position(name)
            if other in fitted.rows and fitted.rows.position(other) != place:
                raise InputError(f"row {other!r} is already in the model")
            self._change(
                fitted.with_roster(fitted.roster.renamed(place, other)),
                lambda: {"verb": "rename_row", "name": fitted.rows[place], "to": other},
            )
            LOG.info("renamed row %r to %r", name, other)
