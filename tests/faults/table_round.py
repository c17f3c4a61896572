"""Fit tables of all shapes and kinds, call every verb of their models, and check every answer.

Run ``.venv/bin/python -m tests.faults.table_round --seed 1 --cases 100``; each seed makes one table. The
findings: exceptions that are not errors of Headstart, and errors of calls that must not fail; warnings of
other libraries; numbers that are not finite, or that the kind cannot have; intervals that are not ordered;
probabilities that do not add up to 1; calls that changed more than they may, and failed calls that changed
anything; answers that depend on the order of observations, on saving, on the service or on the command line.
Tables and calls that are refused for a reason that ``EXPECTED`` does not list are shown, too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from starlette.testclient import TestClient

from headstart import Headstart, HeadstartError, Prediction, Table
from headstart.errors import MetadataWarning, SurpriseWarning
from headstart.service.app import create_app
from headstart.service.worker import ServiceSettings
from tests.faults.made_tables import MadeTable, Shape, long_frame, make_table
from tests.test_cli import run

LATER = 2e9  # the time of later observations

# Parts of the messages of tables and calls that are refused for a good reason.
EXPECTED = (
    "at least 4 are needed",
    "by='relevance' is for ratings",
    "compares values of one kind",
    "contains no observations",
    "contains text, such as",
    "convert the column to numbers",
    "contains text among numbers",
    "has clicks: a cell without a click is not missing",
    "is a category; name one of its levels",
    "is censored, and fewer than 2 different values are not",
    "is not among those the model was fitted on",
    "is too large to compute with",
    "leave no observation to test on",
    "may be a code for missing values",
    "no feature of the kind click has clicks",
    "so that its levels are not known",
    "the features are categories, whose levels have no order",
    "the model has observed all of these cells",
    "the model knows none of the table's features",
)


class Findings:
    """The findings of one table, and the calls that were refused."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.refused: list[str] = []
        self.step = ""

    def add(self, text: str) -> None:
        """Add a finding of the present step."""
        self.found.append(f"[{self.step}] {text}")

    def check(self, holds: Any, text: str) -> None:
        """Add a finding unless ``holds``."""
        if not holds:
            self.add(text)

    @contextmanager
    def during(self, step: str, *, may_be_refused: bool = False) -> Iterator[None]:
        """Find the exceptions and the warnings of the ``with`` block."""
        self.step = step
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except HeadstartError as error:
                text = f"{type(error).__name__}: {error}"
                if may_be_refused:
                    self.refused.append(f"{step}: {text}")
                else:
                    self.add(f"refused: {text}")
            except Exception:
                self.add(traceback.format_exc(limit=-6))
        for warning in caught:
            own = issubclass(warning.category, (SurpriseWarning, MetadataWarning, ResourceWarning))
            if not own and "httpx" not in str(warning.message):
                self.add(f"warning: {warning.message} ({warning.filename}:{warning.lineno})")
        self.step = ""

    def unexpected(self) -> list[str]:
        """Return the findings, and refusals for a reason that is not expected."""
        refused = [text for text in self.refused if not any(words in text for words in EXPECTED)]
        return [*dict.fromkeys(self.found), *dict.fromkeys(refused)]


def numbers_of(prediction: Prediction) -> bytes:
    """Return all numbers of a prediction, to be compared bit for bit."""
    chances = b"".join(prediction.chances[position].tobytes() for position in sorted(prediction.chances))
    return prediction.center.tobytes() + prediction.scale.tobytes() + chances


def check_prediction(findings: Findings, prediction: Prediction) -> None:
    """Check every number of a prediction."""
    with np.errstate(over="ignore"):  # of differences of the largest numbers
        (low, high), (lowest, highest) = prediction.interval(0.9), prediction.interval(0.99)
        parts = {"mean": prediction.mean, "std": prediction.std, "median": prediction.quantile(0.5)}
        parts |= {"low": low, "high": high, "lowest": lowest, "highest": highest}
        for position, name in enumerate(prediction.features):
            if position in prediction.chances:
                _check_chances(findings, prediction, name)
            else:
                _check_feature(
                    findings, prediction, position, {k: part[:, position] for k, part in parts.items()}
                )


def _check_chances(findings: Findings, prediction: Prediction, name: str) -> None:
    chances = prediction.probabilities(name)
    kind = prediction.kinds[prediction.features.position(name)]
    findings.check(np.isfinite(chances).all(), f"probabilities of {kind} are not finite")
    findings.check((chances >= 0).all() and (chances <= 1).all(), f"probabilities of {kind} beyond 0 and 1")
    findings.check(np.allclose(chances.sum(1), 1, atol=1e-6), f"probabilities of {kind} do not add up to 1")
    findings.check(chances.shape[1] == len(prediction.levels(name)), f"levels of {kind}")


def _check_feature(
    findings: Findings, prediction: Prediction, position: int, parts: dict[str, NDArray[np.float64]]
) -> None:
    name, kind = prediction.features[position], prediction.kinds[position]
    wrong = [part for part, values in parts.items() if not np.isfinite(values).all()]
    findings.check(not wrong, f"{wrong} of {kind} are not finite")
    if wrong or not len(prediction.rows):
        return
    least, most = kind.low, kind.high
    if kind.margin.levels:
        least, most = kind.margin.levels[0], kind.margin.levels[-1]
    elif kind.name in ("amount", "count", "click"):
        least, most = 0.0, 1.0 if kind.name == "click" else np.inf
    rounding = 1e-9 * max(1.0, *(abs(end) for end in (least, most) if np.isfinite(end)), 0.0)
    for part, values in parts.items():
        if part != "std":
            inside = (values >= least - rounding).all() and (values <= most + rounding).all()
            findings.check(inside, f"{part} of {kind} from {values.min()} to {values.max()}")
    findings.check((parts["std"] >= 0).all(), f"std of {kind}: {parts['std'].min()}")
    order = ["lowest", "low", *([] if kind.name == "ordinal" else ["median"]), "high", "highest"]
    for lower, upper in pairwise(order):
        rounding = 1e-9 * np.maximum(np.abs(parts[lower]), np.abs(parts[upper]))
        findings.check((parts[lower] <= parts[upper] + rounding).all(), f"{kind}: {lower} above {upper}")
    above = prediction.probability_above(float(parts["median"][0]))[:, position]
    findings.check(((above >= 0) & (above <= 1)).all(), f"{kind}: probability_above() is {above}")
    if kind.margin.levels:
        _check_chances(findings, prediction, name)


def check_draws(findings: Findings, prediction: Prediction, drawn: NDArray[np.float64]) -> None:
    """Check that draws (n, rows, features) are values that the features of ``prediction`` can have."""
    for position, kind in enumerate(prediction.kinds):
        values = drawn[..., position]
        if position in prediction.chances:
            possible = np.isin(values, np.arange(prediction.chances[position].shape[1]))
        elif kind.margin.levels or kind.name == "click":
            possible = np.isin(values, kind.margin.levels or (0, 1))
        elif kind.name == "rating":
            possible = np.abs(values - (kind.low + kind.high) / 2) <= kind.span / 2 * (1 + 1e-9)
        else:
            possible = np.isfinite(values) & ((values >= 0) | (kind.name == "real"))
            possible &= (values == np.round(values)) | (kind.name != "count")
        findings.check(possible.all(), f"draws of {kind}: {np.unique(values[~possible])[:5]}")


class TableRound:
    """The verbs of the model of one made table."""

    def __init__(self, made: MadeTable, seed: int, folder: Path, findings: Findings) -> None:
        self.made, self.folder, self.findings = made, folder, findings
        self.random = np.random.default_rng(seed + 10**6)
        self.table, self.model = None, None
        with findings.during("read", may_be_refused=True):
            self.table = Table.read(made.source(), quiet=True, **made.options)
        with findings.during("fit", may_be_refused=True):
            if self.table is not None:
                self.model = Headstart(quiet=True, **made.settings).fit(self.table)

    def run(self, *, interfaces: bool = True) -> None:
        """Call every verb; ``interfaces`` are the service, the command line and the imputer."""
        if self.model is None:
            return
        self.features, self.rows = list(self.model.features), list(self.model.rows)
        self.prediction = self.model.predict()
        self.later = {"time": LATER} if self.made.times is not None else {}
        order = self.random.permutation(len(self.made.spare))
        self.spare = [cell for i in order if self._fits(cell := self.made.spare[i])][:9]
        self.known = [cell for cell in self.made.cells if self._fits(cell)]
        verbs = [
            self.predict,
            self.describe,
            self.rank,
            self.explain,
            self.draw,
            self.save,
            self.add_features,
        ]
        verbs += [self.add_rows, self.observe, self.fail, self.remove, self.evaluate, self.update, self.refit]
        for verb in [*verbs, *([self.serve, self.command, self.impute_arrays] if interfaces else [])]:
            verb()

    # -- what the table offers ---------------------------------------------------------------------

    def _fits(self, cell: tuple[str, str, Any]) -> bool:
        """Return whether the model knows the names of a cell, and its value is possible."""
        row, feature, value = cell
        if row not in self.model.rows or feature not in self.features:
            return False
        position = self.prediction.features.position(feature)
        if not isinstance(value, str):
            return position not in self.prediction.chances and self.prediction.kinds[position].allows(value)
        return feature in self.prediction.labelled and value in map(str, self.prediction.levels(feature))

    def _values(self, feature: str, count: int) -> dict[str, Any]:
        """Return some values of a feature by row."""
        cells = [cell for cell in [*self.spare, *self.known] if cell[1] == feature]
        return {row: value for row, _, value in cells[:count]}

    def _kind(self, feature: str) -> str:
        """Return the kind of a feature as text, for a new feature; empty if it cannot be given."""
        position = self.prediction.features.position(feature)
        if position not in self.prediction.chances:
            return self.prediction.kinds[position].option
        levels = [str(level) for level in self.prediction.levels(feature)]
        return f"category:{json.dumps(levels)}" if len(levels) > 1 else ""

    def _event(self, feature: str) -> str:
        """Return a name that stands for a number: of a category that of a level."""
        if self.prediction.features.position(feature) in self.prediction.chances:
            return f"{feature}={self.prediction.levels(feature)[0]}"
        return feature

    def _guest(self) -> dict[str, Any]:
        """Return the observations of a new row."""
        return {feature: value for _, feature, value in self.known[:12]}

    # -- verbs that change nothing -----------------------------------------------------------------

    def predict(self) -> None:
        """Predict all cells, parts of them and new rows."""
        findings, model, whole = self.findings, self.model, self.prediction
        with findings.during("predict"):
            check_prediction(findings, whole)
            part = model.predict(self.rows[:2], self.features[-1:])
            expected = whole.center[:2, -1:]
            findings.check(np.allclose(part.center, expected, rtol=1e-6, atol=1e-9, equal_nan=True), "a part")
            repr(whole), whole._repr_html_(), whole.to_arrow(), whole.to_wide(self.table)
            whole.probabilities_to_arrow()
        with findings.during("predict new rows"):
            guest = self._guest()
            found = model.predict({"blank": {}, "guest": guest})
            check_prediction(findings, found)
            turned = model.predict({"blank": {}, "guest": dict(reversed(list(guest.items())))})
            same = np.allclose(found.center, turned.center, rtol=1e-6, atol=1e-7, equal_nan=True)
            findings.check(same, "the order of observations matters")

    def describe(self) -> None:
        """Show the model, its features and rows."""
        findings, model = self.findings, self.model
        with findings.during("describe"):
            str(model.info), repr(model), model._repr_html_(), str(model.staleness()), self.table.describe()
            model.card().to_markdown(), model.card().to_html(), model.find_features("f"), model.find_rows("u")
            for feature in self.features[:3]:
                known = model.feature(feature)
                findings.check(known.shots == len(known.observations), f"shots of {known!r}")
            repr(model.row(self.rows[0]))
            findings.check(all(np.isfinite(part.error) for part in model.info.errors), "expected errors")

    def rank(self) -> None:
        """Rank features and rows by every criterion."""
        findings, model, row, feature = self.findings, self.model, self.rows[0], self.features[0]
        for by in ("mean", "lower", "upper", "sample", "lift", "relevance", "information"):
            with findings.during(f"recommend by {by}", may_be_refused=True):
                self._check_ranking(model.recommend(row, n=5, by=by, mixed_kinds=True))
            with findings.during(f"audience by {by}", may_be_refused=True):
                self._check_ranking(model.audience(self._event(feature), n=5, by=by))
        with findings.during("rank for new rows", may_be_refused=True):
            self._check_ranking(model.recommend({}, n=50, mixed_kinds=True, exclude_observed=False))
            model.recommend_many(self.rows[:3], n=3, mixed_kinds=True)
        with findings.during("similar"):
            correlations = [similarity for _, similarity in model.similar(feature, n=5)]
            findings.check(all(abs(each) <= 1 + 1e-9 for each in correlations), f"{correlations}")
        with findings.during("suggest"):
            findings.check({*model.suggest(feature, n=3)} <= {*self.rows}, "unknown rows")

    def _check_ranking(self, ranking: Any) -> None:
        repr(ranking), ranking.to_arrow()
        score = np.asarray(ranking.score, dtype=np.float64)
        self.findings.check(np.isfinite(score).all(), f"scores {score}")
        if ranking.by != "information":
            falling = np.diff(score) <= 1e-9 * np.abs(score[:-1]) + 1e-12
            self.findings.check(falling.all(), f"scores not in order: {score}")
            for part in (ranking.mean, ranking.std, ranking.low, ranking.high):
                self.findings.check(np.isfinite(np.asarray(part, dtype=float)).all(), f"numbers {part}")

    def explain(self) -> None:
        """Explain cells of a known and of a blank row."""
        for row in (self.rows[-1], {}):
            for feature in dict.fromkeys([self.features[0], self.features[-1]]):
                with self.findings.during("explain"):
                    why = self.model.explain(row, feature)
                    parts = [why.baseline, *(part.value for part in why)]
                    size = max(abs(part) for part in [*parts, why.output])
                    close = abs(sum(parts) - why.output) <= 1e-6 * size + 1e-12
                    self.findings.check(close, f"parts of {repr(why)[:200]} do not add up")

    def draw(self) -> None:
        """Draw cells jointly and independently, and fill missing ones."""
        findings, model = self.findings, self.model
        with findings.during("sample"):
            check_draws(findings, self.prediction, model.sample(n=3))
            check_draws(findings, self.prediction, self.prediction.sample(3))
        with findings.during("impute", may_be_refused=True):
            imputed = model.impute(2)
            check_draws(findings, self.prediction, imputed.values)
            frame = imputed[0]
            findings.check(not frame.isna().to_numpy().any(), "cells are still missing")
            observed = model.table()
            if not self.prediction.chances:
                seen = frame.to_numpy(dtype=object)[observed.row_index, observed.feature_index]
                findings.check((seen.astype(float) == observed.values).all(), "observed cells were changed")

    def save(self) -> None:
        """Save and load."""
        with self.findings.during("save"):
            self.model.save(self.folder / "saved")
            for verify in (True, False):
                loaded = Headstart.load(self.folder / "saved", verify=verify)
                same = numbers_of(loaded.predict()) == numbers_of(self.prediction)
                self.findings.check(same, "the loaded model predicts otherwise")
                self.findings.check(
                    loaded.table().fingerprint() == self.model.table().fingerprint(),
                    "the loaded table differs",
                )

    def evaluate(self) -> None:
        """Evaluate on cells and on new features."""
        kinds = {name: kind for name, kind in self.made.kinds.items() if name in {c[1] for c in self.spare}}
        for on in ("cells", "features") if self.spare else ():
            with self.findings.during(f"evaluate {on}", may_be_refused=True):
                new = "" if on == "cells" else "new "
                frame = long_frame([(row, new + feature, value) for row, feature, value in self.spare])
                named = {new + name: kind for name, kind in kinds.items()}
                self.model.evaluate(frame, shots=(0, 1), on=on, by="mean", kinds=named).to_markdown()

    # -- verbs that change the model ---------------------------------------------------------------

    def add_features(self) -> None:
        """Add features like known ones, with no observations up to many."""
        findings, self.larger = self.findings, copy(self.model)
        before = numbers_of(self.prediction)
        for number, feature in enumerate(self.random.permutation(self.features)[:4].tolist()):
            observed = self._values(feature, int(self.random.choice([0, 1, 2, 5, 40])))
            kind = self._kind(feature)
            with findings.during(f"add_feature of {kind} with {len(observed)} shots"):
                if kind:
                    self._add_feature(f"new/{number} ☃", kind, observed)
        with findings.during("the model with new features"):
            added = self.larger.predict(features=self.features)
            findings.check(numbers_of(added) == before, "other features changed")
            check_prediction(findings, self.larger.predict({"guest": {}}))
            for name in self.larger.features[len(self.features) :][:1]:
                (
                    self.larger.similar(name),
                    self.larger.suggest(name, n=2),
                    self.larger.explain(self.rows[0], name),
                )
            self.larger.sample(n=1)

    def _add_feature(self, name: str, kind: str, observed: dict[str, Any]) -> None:
        """Add a feature at once, in another order, and with its observations one by one."""
        findings, metadata = self.findings, self.made.metadata or None
        turned, one_by_one = copy(self.model), copy(self.model)
        self.larger.add_feature(name, metadata, observed, kind)
        turned.add_feature(name, metadata, dict(reversed(list(observed.items()))), kind)
        one_by_one.add_feature(name, metadata, kind=kind)
        now = {"time": one_by_one.state.now} if self.later else {}
        for row, value in observed.items():
            one_by_one.observe_feature(name, {row: value}, **now)
        found = self.larger.predict(features=[name])
        check_prediction(findings, found)
        for how, model in (("in another order", turned), ("one by one", one_by_one)):
            other = model.predict(features=[name])
            theirs, ours = (
                (other.chances[0], found.chances[0]) if found.chances else (other.center, found.center)
            )
            deviation = 1.0 if found.chances else np.abs(found.scale).max()
            if not (kind.startswith("click") and model is one_by_one):  # whose exposure is estimated
                close = np.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * deviation)
                findings.check(close, f"observations {how} give another prediction")

    def add_rows(self) -> None:
        """Add rows, and remove them."""
        findings, model = self.findings, copy(self.larger)
        before = numbers_of(model.predict(self.rows))
        with findings.during("add_rows"):
            metadata = None if self.made.row_metadata is None else {"Ann ☃": self.made.row_metadata}
            model.add_rows({"Ann ☃": self._guest(), "nobody/else": {}}, metadata)
            check_prediction(findings, model.predict(["Ann ☃", "nobody/else"]))
            findings.check(numbers_of(model.predict(self.rows)) == before, "other rows changed")
            model.add_row("Bea", observations=self._guest(), update="both")
            check_prediction(findings, model.predict(["Bea"]))
            for row in ("Ann ☃", "nobody/else", "Bea"):
                model.remove_row(row)
            findings.check(list(model.rows) == self.rows, "rows are left over")
            check_prediction(findings, model.predict())

    def observe(self) -> None:
        """Observe triples, a frame, one feature, one row, unknown names and extreme values."""
        findings, self.observed, cells = self.findings, copy(self.larger), self.spare
        model, later = self.observed, self.later
        if not cells:
            return
        row, feature, value = cells[0]
        with findings.during("observe"):
            model.observe(cells[:1], **later)
            model.observe(cells[1:6], **later)
            model.observe_feature(feature, {row: value}, **later)
            model.observe_row(row, {feature: value}, **later)
            if cells[6:] and not later:
                model.observe(long_frame(cells[6:]))
            model.observe([cells[0], ("stranger", feature, value)], unknown="add", **later)
            model.observe([(row, "unheard of", value)], unknown="skip", **later)
            check_prediction(findings, model.predict())
            str(model.staleness()), model.card().to_markdown(), model.table()
        for name, kind in zip(self.features, self.prediction.kinds, strict=True):
            if kind.name == "real":
                with findings.during("observe extreme values"):
                    for far in (1e30, -1e15, 1e6):
                        self._observe_extreme(model, name, kind.offset + far * kind.span)
                break

    def _observe_extreme(self, model: Headstart, feature: str, value: float) -> None:
        try:
            model.observe_feature(feature, {self.rows[0]: value}, **self.later)
        except HeadstartError as error:
            self.findings.check("too large" in str(error), str(error))
        check_prediction(self.findings, model.predict(features=[feature]))

    def fail(self) -> None:
        """Call verbs with invalid arguments."""
        findings, model, row, feature = self.findings, copy(self.model), self.rows[0], self.features[0]
        calls: dict[str, Callable[[], Any]] = {
            "an unknown row": lambda: model.observe([(row, feature, 1), ("no such row", feature, 1)]),
            "nan": lambda: model.observe_feature(feature, {row: float("nan")}),
            "infinity": lambda: model.observe_feature(feature, {row: float("inf")}),
            "a known feature": lambda: model.add_features({"fresh": {}, feature: {}}),
            "a known row": lambda: model.add_rows({"fresh": {}, row: {}}),
            "no kind": lambda: model.add_feature("fresh", kind="nothing"),
            "no metadata": lambda: model.add_feature("fresh", metadata={"no such column": 1}),
            "no name": lambda: model.rename_feature(feature, ""),
            "no weight": lambda: model.observe([(row, feature, 1)], weight=0),
        }
        for what, call in calls.items():
            with findings.during(f"refuse {what}"):
                try:
                    call()
                    findings.add("was not refused")
                except HeadstartError as error:
                    findings.check(len(str(error)) > 15, f"short message: {error}")
                same = numbers_of(model.predict()) == numbers_of(self.prediction)
                findings.check(same and list(model.rows) == self.rows, "a failed call changed the model")

    def remove(self) -> None:
        """Rename and remove features and rows."""
        findings, model = self.findings, copy(self.larger)
        with findings.during("rename and remove"):
            before = numbers_of(model.predict())
            model.rename_feature(self.features[0], "re named")
            model.rename_row(self.rows[0], "re/named")
            findings.check(numbers_of(model.predict()) == before, "a renaming changed predictions")
            model.remove_feature("re named")
            if len(self.rows) > 1:
                model.remove_row("re/named")
            check_prediction(findings, model.predict())

    def update(self) -> None:
        """Change the saved model in place, twice."""
        findings, place, feature = self.findings, self.folder / "saved", self.features[0]
        with findings.during("updating"):
            for number in range(2):
                with Headstart.updating(place) as model:
                    if kind := self._kind(feature):
                        model.add_feature(
                            f"later {number}", self.made.metadata, self._values(feature, 3), kind
                        )
                    model.add_row(f"later/{number}", self.made.row_metadata)
                    if self.spare:
                        model.observe(self.spare[:4], **self.later)
                    model.rename_row(f"later/{number}", f"latest/{number}")
                    expected = numbers_of(model.predict())
                loaded = Headstart.load(place)
                findings.check(numbers_of(loaded.predict()) == expected, "the journal gives another model")
            same = loaded.table().fingerprint() == model.table().fingerprint()
            findings.check(same, "the journal gives another table")

    def refit(self) -> None:
        """Fit the observed model again."""
        with self.findings.during("refit", may_be_refused=True):
            model = copy(self.observed)
            model.quiet = True
            features = {*model.features}
            check_prediction(self.findings, model.refit().predict())
            self.findings.check({*model.features} == features, "other features")

    # -- other interfaces --------------------------------------------------------------------------

    def serve(self) -> None:
        """Ask the service; its predictions are those of the library."""
        findings, model = self.findings, self.model
        names, rows = ([name for name in every if name.isprintable()] for every in (self.features, self.rows))
        if not names or not rows:
            return
        with findings.during("service"):
            app = create_app(self.folder / "saved", f"sqlite:///{self.folder}/store.db", ServiceSettings())
            model = Headstart.load(self.folder / "saved")
            with TestClient(app, raise_server_exceptions=False) as client:
                app.service.wait()

                def ask(address: str, body: dict[str, Any]) -> Any:
                    answer = client.post(f"/v1/{address}", json=body)
                    findings.check(answer.status_code < 500, f"{address} {body}: {answer.text[:300]}")
                    if answer.status_code >= 400:
                        findings.refused.append(f"service: {address}: {answer.text[:600]}")
                    return answer.json()

                for asked in (names[:2], names):
                    found = ask("predict", {"rows": rows[:5], "features": asked, "form": "cells"})
                    self._compare_cells(model.predict(rows[:5], asked), found["predictions"])
                for address in ("features", "rows", "model", "schema", "quality"):
                    findings.check(client.get(f"/v1/{address}").status_code == 200, address)
                guest = {name: value for name, value in self._guest().items() if name in names}
                for row in (rows[0], guest):
                    ask("recommend", {"row": row, "n": 3, "by": "information"})
                    ask("explain", {"row": row, "feature": names[0], "n": 3})
                ask("audience", {"feature": self._event(names[0]), "n": 3})
                ask("suggest", {"feature": names[0], "n": 3})
                ask("similar", {"feature": names[0], "n": 3})
                ask("sample", {"rows": rows[:2], "features": names[:3], "n": 2})
                ask("impute", {"m": 2, "rows": rows[:2], "features": names[:3]})
                observed = {row: v for row, v in self._values(names[0], 3).items() if row in rows}
                if kind := self._kind(names[0]):
                    ask("features", {"name": "of the/service", "kind": kind, "observations": observed})
                ask("rows", {"name": "row of the/service", "observations": guest})
                triples = [{"row": row, "feature": names[0], "value": v} for row, v in observed.items()]
                if triples:
                    ask("observations", {"observations": [line | self.later for line in triples]})

    def _compare_cells(self, own: Prediction, cells: list[dict[str, Any]]) -> None:
        """Compare cells of the service with the prediction of the library."""
        parts = dict(
            zip(("mean", "std", "low", "high"), (own.mean, own.std, *own.interval(0.9)), strict=True)
        )
        for cell in cells:
            at = own.rows.position(cell["row"]), own.features.position(cell["feature"])
            if at[1] in own.chances:
                theirs = np.array(list(cell["probabilities"].values()))
                same = np.allclose(theirs, own.chances[at[1]][at[0]], atol=1e-6)
            else:
                deviation = max(float(own.std[at]), 1e-300)
                same = all(
                    abs(cell[name] - part[at]) <= 1e-5 * max(deviation, 10 * abs(part[at]))
                    for name, part in parts.items()
                )
            self.findings.check(same, f"the service predicts {cell}")

    def command(self) -> None:
        """Fit, ask and change a model on the command line."""
        findings, made, folder = self.findings, self.made, self.folder / "commands"
        folder.mkdir()
        pq.write_table(made.source(), folder / "data.parquet")
        options = [f"--{name}={name}" for name in ("time", "weight") if name in made.options]
        options += [f"--half-life={value}" for name, value in made.settings.items() if name == "half_life"]
        for name, kind in made.options.get("kinds", {}).items():
            options += ["--kind", f"{name}={kind}"]
        for name in ("metadata", "row_metadata"):
            if name in made.options:
                pq.write_table(made.options[name], folder / f"{name}.parquet")
                options.append(f"--{name.replace('_', '-')}={name}.parquet")
        feature, row = self.features[0], self.rows[0]

        def call(*arguments: str) -> None:
            done = run(*arguments, cwd=folder)
            if done.returncode:
                clear = "Traceback" not in done.stderr and "error: " in done.stderr
                where = findings.refused.append if clear else findings.add
                where(f"command {arguments}: {done.stderr[-600:]}")

        with findings.during("commands"):
            call("fit", "data.parquet", "--adapter", made.settings["adapter"], "--out", "m", *options)
            if not (folder / "m").exists():
                return
            same = numbers_of(Headstart.load(folder / "m").predict()) == numbers_of(self.prediction)
            findings.check(same, "the command fits another model")
            for command in (
                ["info"],
                ["card"],
                ["features"],
                ["rows"],
                ["check"],
                ["predict", "--form", "wide"],
            ):
                call(command[0], "m", *command[1:], *(["--out", "w.csv"] if command[1:] else []))
            call("export", "m", "--out", "exported.parquet")
            if not any(name.startswith("-") for name in (feature, row)):
                call("recommend", "m", row, "--by", "information")
                call("explain", "m", row, feature)
                for verb in ("similar", "suggest"):
                    call(verb, "m", feature)
            if kind := self._kind(feature):
                call("add-feature", "m", "a new one", "--kind", kind)
            call("add-row", "m", "a new row")
            if self.spare:
                more = {name: [value] * len(self.spare) for name, value in self.later.items()}
                pq.write_table(long_frame(self.spare, **more), folder / "more.parquet")
                call("observe", "m", "more.parquet", *(["--time", "time"] if more else []))
            call("remove", "m", "--rows", "a new row")
            check_prediction(findings, Headstart.load(folder / "m").predict())

    def impute_arrays(self) -> None:
        """Fill an array of numbers with the imputer of scikit-learn."""
        from headstart.sklearn import HeadstartImputer

        made, findings = self.made, self.findings
        if any(isinstance(value, str) for *_, value in made.cells) or "click" in made.kinds.values():
            return
        values = np.full((len(made.rows), len(made.features)), np.nan)
        rows, columns = ({name: i for i, name in enumerate(names)} for names in (made.rows, made.features))
        for row, feature, value in made.cells:
            values[rows[row], columns[feature]] = value
        before, seen = values.copy(), ~np.isnan(values)
        with findings.during("imputer", may_be_refused=True):
            imputer = HeadstartImputer(adapter="bayes").fit(values)
            filled = imputer.transform(values)
            findings.check(np.array_equal(values, before, equal_nan=True), "the argument was changed")
            findings.check(np.isfinite(filled).all(), "filled cells are not finite")
            findings.check(np.array_equal(filled[seen], values[seen]), "observed cells were changed")


def check_table(seed: int, most: Shape | None = None, *, interfaces: bool = True) -> Findings:
    """Make the table of a seed, fit it, call all verbs, and return the findings."""
    findings, made = Findings(), make_table(seed, most or Shape())
    with tempfile.TemporaryDirectory() as folder:
        TableRound(made, seed, Path(folder), findings).run(interfaces=interfaces)
    return findings


def main() -> None:
    """Check the tables of some seeds, and print their findings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.cases):
        start = time.monotonic()
        unexpected = check_table(seed).unexpected()
        print(f"seed {seed}, {time.monotonic() - start:.1f} s, {len(unexpected)} findings", end=": ")
        print(make_table(seed).about, flush=True)
        for text in unexpected:
            print(f"  ! {text}", flush=True)


if __name__ == "__main__":
    main()
