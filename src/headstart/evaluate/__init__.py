"""Evaluation: splits, the tests of new features and new rows, metrics, times, pictures and reports."""

from headstart.evaluate.benchmark import Benchmark
from headstart.evaluate.benchmark_config import BenchmarkConfig
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import METRICS, Metric, Score, score
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.report import html_report, markdown_report
from headstart.evaluate.results import Curve, Results, Run
from headstart.evaluate.row_test import RowTest
from headstart.evaluate.splits import FeatureSplit, split_features
from headstart.evaluate.tables import TextTable, metric_table, timing_table
from headstart.evaluate.targets import Targets
from headstart.evaluate.timing import Timing, time_adapters

__all__ = [
    "METRICS",
    "Benchmark",
    "BenchmarkConfig",
    "Curve",
    "FeatureSplit",
    "KShotTest",
    "Metric",
    "MissingMatplotlibError",
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
    "score",
    "split_features",
    "time_adapters",
    "timing_table",
]
