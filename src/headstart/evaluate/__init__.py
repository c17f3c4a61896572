"""Evaluation: splits, the tests of new features and new rows, metrics, times, pictures and reports."""

from headstart.evaluate.benchmark import Benchmark, BenchmarkConfig
from headstart.evaluate.kshot import KShotTest, RowTest, Targets
from headstart.evaluate.metrics import METRICS, Metric, Score, score
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.pooled_estimates import Pooled, pool
from headstart.evaluate.rankings import Lists, score_lists
from headstart.evaluate.references import REFERENCES
from headstart.evaluate.reports import html_report, markdown_report
from headstart.evaluate.results import (
    Curve,
    Results,
    Run,
    TextTable,
    Timing,
    metric_table,
    time_adapters,
    timing_table,
)
from headstart.evaluate.splits import FeatureSplit, split_features, split_observations

__all__ = [
    "METRICS",
    "REFERENCES",
    "Benchmark",
    "BenchmarkConfig",
    "Curve",
    "FeatureSplit",
    "KShotTest",
    "Lists",
    "Metric",
    "MissingMatplotlibError",
    "Pooled",
    "Results",
    "RowTest",
    "Run",
    "Score",
    "Targets",
    "TextTable",
    "Timing",
    "html_report",
    "markdown_report",
    "metric_table",
    "plot_kshot",
    "pool",
    "score",
    "score_lists",
    "split_features",
    "split_observations",
    "time_adapters",
    "timing_table",
]
