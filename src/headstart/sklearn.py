"""An imputer for scikit-learn: ``HeadstartImputer`` fills the missing cells of arrays and frames."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.model import Headstart
from headstart.model.fitting import MIN_FEATURES_TO_FIT
from headstart.table import Table

try:
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        f"headstart.sklearn needs scikit-learn ({error}); run: pip install 'headstart[sklearn]'"
    ) from None

_STRATEGIES = ("mean", "median", "sample")

_NEW_FEATURES = ("error", "add")

_ROWS_AT_ONCE = 2**14  # rows that are predicted together, which bounds the memory


class HeadstartImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Fill missing cells (NaN) with the predictions of a ``Headstart`` model of all columns.

    ``fit`` trains a model on the observed cells. ``transform`` describes each row by its observed cells,
    whether it was in ``fit`` or not, and predicts the others; observed cells stay unchanged.

    Parameters
    ----------
    kinds : str, mapping or None, default=None
        The kinds of the columns, as in ``Table.read``: one for all, or {column: kind}. By default a column
        of 0 and 1 is binary and any other is real. "infer" lets ``Table.read`` infer them.
    adapter : str or mapping, default="auto"
        The adapter of the model, as in ``Headstart``.
    backbone : str or mapping, default="factorisation"
        The backbone of the model, as in ``Headstart``.
    strategy : {"mean", "median", "sample"}, default="mean"
        The filled value: the mean of the predicted distribution (for a binary column the probability of
        1), its median (0 or 1, and whole numbers for counts), or a joint draw.
    new_features : {"error", "add"}, default="error"
        What ``transform`` does with columns of a frame that ``fit`` has not seen. "error" is scikit-learn's
        rule. "add" adds them to a copy of the model as new features: such a column is filled from its own
        observed cells and from the other columns, which are filled as without it. The result is then a
        pandas frame with all columns.
    random_state : int, default=0
        The seed of training and of draws.

    Attributes
    ----------
    model_ : Headstart or None
        The fitted model. None if fewer than four columns have observed cells, too few for a model: then
        missing cells get the mean of their column.
    means_ : ndarray of shape (features,)
        The mean of each column; 0 without observed cells.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> values = random.normal(size=(200, 2)) @ random.normal(size=(2, 20))
    >>> holes = np.where(random.random(values.shape) < 0.2, np.nan, values)
    >>> filled = HeadstartImputer(adapter="bayes").fit_transform(holes)
    >>> bool(np.abs(filled - values).mean() < 0.1)
    True
    """

    def __init__(
        self,
        *,
        kinds: str | Mapping[Any, Any] | None = None,
        adapter: Any = "auto",
        backbone: Any = "factorisation",
        strategy: Literal["mean", "median", "sample"] = "mean",
        new_features: Literal["error", "add"] = "error",
        random_state: int = 0,
    ) -> None:
        self.kinds = kinds
        self.adapter = adapter
        self.backbone = backbone
        self.strategy = strategy
        self.new_features = new_features
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Train the model on the observed cells of ``X``, of shape (rows, features); ``y`` is not used."""
        for name, allowed in (("strategy", _STRATEGIES), ("new_features", _NEW_FEATURES)):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        values = self._validate(X, reset=True)
        observed = ~np.isnan(values)
        counts = observed.sum(0)
        self.means_ = np.where(observed, values, 0.0).sum(0) / np.maximum(counts, 1)
        self.model_: Headstart | None = None
        if (counts > 0).sum() >= MIN_FEATURES_TO_FIT:
            kinds = self._kinds(values, self._names())
            table = Table.read(values, feature_names=self._names(), kinds=kinds)
            settings = {"adapter": self.adapter, "backbone": self.backbone, "random_state": self.random_state}
            self.model_ = Headstart(**settings, quiet=True).fit(table)
        return self

    def transform(self, X: Any) -> Any:
        """Return ``X`` with its missing cells filled: an array, or as ``set_output`` says."""
        check_is_fitted(self)
        if self.new_features == "add" and hasattr(X, "columns") and hasattr(self, "feature_names_in_"):
            new = [name for name in X.columns if name not in set(self.feature_names_in_)]
            if new:
                return self._transform_with_new(X, new)
        values = self._validate(X, reset=False)
        missing = np.isnan(values)
        if not missing.any():
            return values
        rows = np.flatnonzero(missing.any(1))
        if self.model_ is None:
            filled = np.broadcast_to(self.means_, (len(rows), values.shape[1]))
        else:
            names = self._names()
            blocks = [rows[i : i + _ROWS_AT_ONCE] for i in range(0, len(rows), _ROWS_AT_ONCE)]
            filled = np.concatenate([self._predict(self.model_, values[block], names) for block in blocks])
        values[rows] = np.where(missing[rows], filled, values[rows])
        return values

    def _predict(
        self, model: Headstart, values: NDArray[np.float64], names: list[str]
    ) -> NDArray[np.float64]:
        """Predict all cells of rows with these observed ``values`` (rows, features): (rows, features)."""
        if np.isnan(values).all():
            rows: Any = {str(row): {} for row in range(len(values))}
        else:
            rows = Table.read(values, feature_names=names, kinds=_kinds_of(model, names))
        return self._fill(model, rows, names)

    def _fill(self, model: Headstart, rows: Any, names: list[str]) -> NDArray[np.float64]:
        """Return the values to fill in at ``rows``, which ``predict`` takes: (rows, features)."""
        if self.strategy == "sample":
            return np.asarray(model.sample(rows, names, random_state=self.random_state)[0])
        prediction = model.predict(rows, names)
        return prediction.mean if self.strategy == "mean" else prediction.quantile(0.5)

    def _transform_with_new(self, X: Any, new: list[Any]) -> Any:
        """Fill a frame with the columns ``new``, which are added to a copy of the model as new features."""
        import pandas

        known = self._validate(X[list(self.feature_names_in_)], reset=False)
        added = X[new].to_numpy(dtype=np.float64, na_value=np.nan)
        if self.model_ is None:
            raise InputError(f"a model of {self.n_features_in_} columns is too small to add new ones to")
        model, names = copy(self.model_), self._names()
        rows = [f"new {row}" for row in range(len(known))]
        model.add_rows({row: _observed(names, line) for row, line in zip(rows, known, strict=True)})
        model.add_features(
            {
                str(name): {"observations": _observed(rows, column), "kind": _kind_of(model, column)}
                for name, column in zip(new, added.T, strict=True)
            }
        )
        columns = [*names, *map(str, new)]
        filled, values = self._fill(model, rows, columns), np.concatenate([known, added], axis=1)
        result = pandas.DataFrame(np.where(np.isnan(values), filled, values), X.index, columns)
        return result[[str(name) for name in X.columns]]

    def _validate(self, X: Any, *, reset: bool) -> NDArray[np.float64]:
        """Return ``X`` as a new array of numbers with NaN."""
        options = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "copy": True}
        return np.asarray(validate_data(self, X, reset=reset, **options))

    def _names(self) -> list[str]:
        """Return the names of the columns; x0, x1 and so on for an array."""
        return [str(name) for name in self.get_feature_names_out()]

    def _kinds(self, values: NDArray[np.float64], names: list[str]) -> Any:
        """Return the kinds of columns for ``Table.read``."""
        if self.kinds is not None:
            return None if isinstance(self.kinds, str) and self.kinds == "infer" else self.kinds
        return {name: _default_kind(column) for name, column in zip(names, values.T, strict=True)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags


def _default_kind(column: NDArray[np.float64]) -> str:
    """Return "binary" for a column of 0 and 1 that has both, otherwise "real"."""
    seen = np.unique(column[~np.isnan(column)])
    return "binary" if seen.tolist() == [0.0, 1.0] else "real"


def _kind_of(model: Headstart, column: NDArray[np.float64]) -> str:
    """Return the kind of a new column, binary only if the model has binary columns."""
    kind = _default_kind(column)
    return kind if kind in {model.feature(name).kind.name for name in model.features} else "real"


def _kinds_of(model: Headstart, names: list[str]) -> dict[str, Any]:
    return {name: model.feature(name).kind for name in names}


def _observed(names: list[str], values: NDArray[np.float64]) -> dict[str, float]:
    """Return {name: value} of the values that are not NaN."""
    return {name: value for name, value in zip(names, values.tolist(), strict=True) if value == value}
