from __future__ import annotations

import base64
import io
import re
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import InputError
from headstart.evaluate import plots
from headstart.evaluate.metrics import METRICS
from headstart.evaluate.plots import LIGHT, styles_of
from headstart.evaluate.reports import html_report, markdown_report
from headstart.evaluate.results import Results, Timing

NUMBERED = {"knn": (1, 5, 10), "train": (1, 5, 10, 25), "maml": (0, 1, 3, 5, 10)}
MANY = ["chn", "mean", "mean-head", "mean-head-matching", "random"]
MANY += [f"{name}-{n}" for name, numbers in NUMBERED.items() for n in numbers]


def size(png: bytes) -> tuple[int, int]:
    height, width, _ = matplotlib.image.imread(io.BytesIO(png)).shape
    return width, height


@pytest.mark.parametrize("methods", [["chn"], ["chn", "mean"], MANY])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_picture_is_drawn_for_any_number_of_methods(worlds, methods, splits):
    width, height = size(plots.plot_kshot(worlds.some_results(methods, splits)))
    assert width > 800
    assert height > 500


def test_two_metrics_stand_side_by_side(worlds):
    one = size(plots.plot_kshot(worlds.some_results(["chn", "mean"])))
    both = worlds.some_results(["chn", "mean"], metrics=("rmse", "auroc"))
    assert size(plots.plot_kshot(both))[0] > 1.8 * one[0]


def test_rows_have_a_second_panel_and_each_metric_a_line(worlds):
    plain = size(plots.plot_kshot(worlds.some_results(["chn", "mean"])))
    rows = {"row_shots": (0, 2, 4)}
    one = size(plots.plot_kshot(worlds.some_results(["chn", "mean"], **rows)))
    assert one[0] > 1.8 * plain[0]
    assert one[1] == plain[1]
    two = worlds.some_results(["chn", "mean"], metrics=("rmse", "auroc"), **rows)
    assert size(plots.plot_kshot(two)) == (one[0], 2 * one[1])


def test_panels_say_what_is_new(worlds, limits):
    drawn = []
    limits(plot_panels=lambda panels, **_: drawn.extend(panels))
    results = worlds.some_results(["chn", "mean"], row_shots=(0, 2, 4))
    plots.plot_kshot(results)
    plots.plot_kshot(worlds.some_results(["chn"]))
    assert [panel.title for panel in drawn] == ["New features", "New rows", ""]
    assert [panel.axis.partition("  ")[0] for panel in drawn] == [
        "shots: observations of the new feature",
        "observations of the new row",
        "shots: observations of the new feature",
    ]
    assert drawn[1].curves == results.curves("rmse", "rows")


def test_the_same_results_give_the_same_bytes(worlds):
    results = worlds.some_results(["chn", "mean"])
    assert plots.plot_kshot(results) == plots.plot_kshot(results)


def test_a_metric_that_is_not_there_is_refused(worlds):
    with pytest.raises(InputError, match="no metric 'rmsee'; did you mean 'rmse'"):
        plots.plot_kshot(worlds.some_results(["chn"]), ["rmsee"])
    with pytest.raises(InputError, match="nothing to draw"):
        plots.plot_kshot(Results(data={}, settings={}, runs=[]))


def test_no_two_methods_look_alike():
    styles = styles_of(MANY, LIGHT)
    assert len({(s.colour, s.marker, s.dashes) for s in styles.values()}) == len(MANY)
    assert styles["knn-1"].colour == styles["knn-10"].colour != styles["train-1"].colour


def test_a_method_has_the_same_style_in_every_picture():
    few, all_styles = styles_of(["chn", "maml-5"], LIGHT), styles_of(MANY, LIGHT)
    assert few["chn"] == all_styles["chn"]
    assert few["maml-5"].colour == all_styles["maml-10"].colour
    peers = styles_of(["headstart", "als", "vbmf"], LIGHT)
    assert peers == styles_of(["vbmf", "als", "headstart"], LIGHT)
    assert len({style.colour for style in peers.values()}) == 3


def test_given_styles_take_the_place_of_those_of_the_names(worlds):
    curves = worlds.some_results(["chn", "peer"]).curves("rmse")
    panel = plots.Panel(curves, METRICS["rmse"])
    usual = styles_of(["chn", "peer"], LIGHT)
    plain = plots.plot_panels([panel])
    assert plots.plot_panels([panel], styles=usual) == plain
    assert plots.plot_panels([panel], styles={"peer": plots.Style("#123456", "D", ())}) != plain


def test_zero_shots_have_a_place_before_one():
    assert plots._position([0, 1, 2, 4, 32]).tolist() == [0, 1, 2, 3, 6]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30).map(sorted))
def test_labels_never_overlap_nor_leave_the_picture_nor_change_order(wanted):
    placed = plots._separate(np.array(wanted), 2.0, 0.0, 100.0)
    assert (np.diff(placed) >= 2.0 - 1e-6).all()
    assert placed.min() >= -1e-6
    assert placed.max() <= 100 + 1e-6
    if all(b - a >= 2 for a, b in pairwise(wanted)):
        assert np.allclose(placed, wanted)


def test_one_hopeless_method_does_not_flatten_the_others(worlds):
    results = worlds.some_results(["chn", "mean", "mean-head", "random"])
    runs = [r.model_copy(update={"value": 50.0}) if r.method == "random" else r for r in results.runs]
    curves = Results(data={}, settings={}, runs=runs).curves("rmse")
    low, high = plots._limits(curves, METRICS["rmse"])
    assert high < 5
    low, high = plots._limits({k: v for k, v in curves.items() if k != "random"}, METRICS["rmse"])
    assert all(low < mean < high for k, v in curves.items() if k != "random" for mean in v.mean)


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(worlds):
    results = worlds.some_results(["chn", "mean"])
    nasty = Results(
        data={**results.data, "name": "<script>alert(1)</script>"},
        settings={**results.settings, "by": "a & b"},
        runs=results.runs,
    )
    timing = Timing(method="chn", shots=4, ms_per_feature=1.0, low=0.9, high=1.2)
    page = html_report(nasty, [timing])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page
    assert not re.search(r"(src|href|srcset|url)\s*[=(]\s*[\"']?(?!data:)(https?:|//|/)", page)
    pictures = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)
    assert len(pictures) == 2  # for light and dark readers
    assert all(size(base64.b64decode(picture))[0] > 800 for picture in pictures)
    for text in (
        "RMSE (lower is better)",
        "Milliseconds per feature",
        "prefers-color-scheme: dark",
        "left out",
    ):
        assert text in page


def test_markdown_holds_numbers_data_and_settings(worlds):
    text = markdown_report(worlds.some_results(["chn", "mean"]))
    assert text.startswith("# Benchmark\n")
    for part in ("## RMSE", "## MAE", "## Data", "- rows: 4", "## Settings", "- shots: 0, 1, 4, 16"):
        assert part in text


def test_reports_show_rows_if_there_are_any(worlds):
    without, with_rows = (worlds.some_results(["chn", "mean"], row_shots=r) for r in ((), (0, 4)))
    page, text = html_report(with_rows), markdown_report(with_rows)
    for part in ("New rows, by their observations: RMSE", "New features in new rows", "held out from"):
        assert part in page
        assert part in text
        assert part not in html_report(without)
        assert part not in markdown_report(without)
    assert page.count('<th scope="col">observations</th>') == 4  # two metrics of rows and of both
    assert "<h2>New rows, by their observations: RMSE" in page
    assert "<summary>New rows, by their observations: MAE" in page
