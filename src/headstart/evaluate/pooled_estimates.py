"""Pool estimates from multiply imputed data by Rubin's rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart.errors import InputError


@dataclass(frozen=True)
class Pooled:
    """An estimate pooled over imputations, with the uncertainty of the missing values.

    Attributes
    ----------
    estimate : float
        The mean of the estimates.
    std_error : float
        The standard error: √(within + (1 + 1/m)·between).
    degrees : float
        The degrees of freedom of the t distribution of the estimate.
    within, between : float
        The mean variance of the estimates, and the variance between them.
    """

    estimate: float
    std_error: float
    degrees: float
    within: float
    between: float

    @property
    def missing_information(self) -> float:
        """The fraction of the variance that is due to missing values, from 0 to 1."""
        total = self.std_error**2
        return (total - self.within) / total if total > 0 else 0.0

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the ends of the confidence interval of this ``level``."""
        from scipy.special import ndtri, stdtrit

        if isinstance(level, bool) or not 0 < level < 1:
            raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
        upper = 0.5 + level / 2
        quantile = float(stdtrit(self.degrees, upper) if math.isfinite(self.degrees) else ndtri(upper))
        return self.estimate - quantile * self.std_error, self.estimate + quantile * self.std_error

    def __str__(self) -> str:
        return f"{self.estimate:.6g} ± {self.std_error:.3g}"


def pool(estimates: Sequence[float], variances: Sequence[float], degrees: float | None = None) -> Pooled:
    """Pool estimates of one quantity from m imputations by Rubin's rules.

    Parameters
    ----------
    estimates : sequence of m numbers
        The estimate from each imputation.
    variances : sequence of m numbers
        Its variance, the squared standard error that would hold if the data had been complete.
    degrees : float, default=None
        The degrees of freedom of an estimate from complete data, such as rows − 1 of a mean. They limit the
        degrees of freedom in small samples (Barnard and Rubin 1999). None: without limit.

    Returns
    -------
    Pooled
        The pooled estimate with its standard error and intervals.

    Examples
    --------
    >>> pooled = pool([1.0, 1.2, 1.1], [0.04, 0.05, 0.06])
    >>> round(pooled.estimate, 3), round(pooled.std_error, 4), round(pooled.degrees, 1)
    (1.1, 0.2517, 45.1)
    """
    values, squares = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    if values.ndim != 1 or values.shape != squares.shape or len(values) < 2:
        raise InputError("pool() takes the estimates and variances of at least two imputations, one of each")
    if not (np.isfinite(values).all() and np.isfinite(squares).all() and (squares >= 0).all()):
        raise InputError("estimates must be finite, and variances finite and not negative")
    count = len(values)
    within, between = float(squares.mean()), float(values.var(ddof=1))
    extra = (1 + 1 / count) * between
    total = within + extra
    freedom = (count - 1) * (total / extra) ** 2 if extra > 0 else math.inf
    if degrees is not None:
        share = extra / total if total > 0 else 0.0
        observed = (degrees + 1) / (degrees + 3) * degrees * (1 - share)
        freedom = observed if math.isinf(freedom) else freedom * observed / (freedom + observed)
    return Pooled(float(values.mean()), math.sqrt(total), freedom, within, between)
