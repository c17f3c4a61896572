"""One model in many threads: nothing that was acknowledged is lost, and no reader is disturbed."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headstart.errors import BusyError, InputError
from headstart.model import Headstart
from headstart.training import loop
from tests.faults.models import ROWS, fresh, table
from tests.states import snapshot

THREADS, SECONDS = 8, 3.0


@pytest.mark.parametrize("kind", ["rating", "real", "binary"])
def test_all_observations_of_all_threads_are_kept(kind: str) -> None:
    model = fresh(kind)
    model.add_feature("new")
    places = np.random.default_rng(0).permutation(ROWS)[: ROWS // THREADS * THREADS]
    values = {f"u{place}": int(place) % 2 + (kind != "binary") for place in places}

    def observe(mine: list[str]) -> None:
        for row in mine:
            model.observe_feature("new", {row: values[row]})

    rows = list(values)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(observe, [rows[start::THREADS] for start in range(THREADS)]))
    assert model.feature("new").shots == len(values)
    model.add_feature("at once", observations=values)
    one, other = (model.predict(features=[name]) for name in ("new", "at once"))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-6)


def test_features_and_rows_of_all_threads_are_kept() -> None:
    model = fresh()

    def change(number: int) -> None:
        for step in range(5):
            name = f"{number}-{step}"
            model.add_rows({f"row {name}": {"f1": 3}})
            model.add_feature(f"feature {name}", observations={f"row {name}": 4})
            if step % 2:
                model.remove_feature(f"feature {number}-{step - 1}")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(change, range(THREADS)))
    assert len(model.rows) == ROWS + 5 * THREADS
    kept = {f"feature {number}-{step}" for number in range(THREADS) for step in (1, 3, 4)}
    assert {name for name in model.features if name.startswith("feature")} == kept


def during(change: Callable[[int], None], *readers: Callable[[], object]) -> int:
    """Let readers read again and again while changes are made; return how many reads there were."""
    over, reads, wrong = threading.Event(), [0] * len(readers), []

    def read(which: int) -> None:
        while not over.is_set():
            try:
                readers[which]()
            except Exception as error:
                wrong.append(error)
                over.set()
            reads[which] += 1

    threads = [threading.Thread(target=read, args=(which,)) for which in range(len(readers))]
    for thread in threads:
        thread.start()
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end and not over.is_set():
        change(number)
        number += 1
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    assert min(reads) > 0
    return number


def test_readers_are_not_disturbed_by_a_writer(tmp_path: Path) -> None:
    """Predictions of what does not change stay bit for bit, whatever else is added beside them."""
    model = fresh()
    still = [name for name in model.features if name != "f0"]
    before = model.predict(rows=[f"u{i}" for i in range(ROWS)], features=still)

    def change(number: int) -> None:
        model.add_rows({f"r{number}": {"f1": 1 + number % 5}})
        model.add_feature(f"new{number}", observations={f"r{number}": 3})
        model.observe_feature("f0", {f"r{number}": 1 + number % 5})
        if number % 3 == 2:
            model.remove_feature(f"new{number - 1}")

    def everything() -> None:
        found = model.predict()
        assert found.mean.shape == (len(found.rows), len(found.features))
        assert np.isfinite(found.mean).all()

    def the_same() -> None:
        found = model.predict(rows=[f"u{i}" for i in range(ROWS)], features=still)
        assert np.array_equal(found.mean, before.mean)
        assert np.array_equal(found.std, before.std)

    def others() -> None:
        assert len(model.suggest("f0", n=2)) == 2
        model.predict(rows={"guest": {"f1": 3}}, features=["f2"])
        assert len(model.info.lines()) >= 4

    def saving() -> None:
        model.save(tmp_path / "m")
        assert set(still) <= set(Headstart.load(tmp_path / "m").features)

    changes = during(change, everything, the_same, others, saving)
    assert changes > 3
    model.save(tmp_path / "m")
    assert Headstart.load(tmp_path / "m").features == model.features


def test_of_two_saves_the_later_has_the_newer_model(tmp_path: Path) -> None:
    model = fresh()
    model.add_feature("new")

    def work(number: int) -> None:
        for step in range(2):
            model.observe_feature("new", {f"u{2 * number + step}": 3})
            model.save(tmp_path / "m")
            assert Headstart.load(tmp_path / "m").feature("new").shots >= step + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert Headstart.load(tmp_path / "m").feature("new").shots == 8


def test_a_model_may_be_saved_inside_updating(tmp_path: Path) -> None:
    place = tmp_path / "m"
    fresh().save(place)
    with Headstart.updating(place) as model:
        model.add_feature("new", observations={"u1": 3})
        model.save(place)
        assert "new" in Headstart.load(place).features
        model.observe_feature("new", {"u2": 4})
    assert Headstart.load(place).feature("new").shots == 2


def test_what_would_be_lost_inside_updating_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "m"
    fresh().save(place)
    with Headstart.updating(place) as model:
        model.add_feature("new")
        with pytest.raises(BusyError, match="leave the block first"):
            fresh().save(place)
        with pytest.raises(BusyError, match="leave the block first"), Headstart.updating(place):
            pass
    assert "new" in Headstart.load(place).features
    fresh().save(place)  # the lock is gone with the block


def test_a_second_fit_leaves_the_checkpoint_of_the_first(tmp_path: Path) -> None:
    """While one fit trains, another to the same checkpoint is refused; then it may start."""
    place, inside, leave = tmp_path / "c", threading.Event(), threading.Event()
    data = table("rating")

    first = Headstart(adapter="chn", quiet=True, metatraining={"epochs": 2})
    run = loop.Loop.run

    def slow(self: loop.Loop, *args: object, **named: object) -> None:
        inside.set()
        leave.wait(60)
        run(self, *args, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(loop.Loop, "run", slow)
        fitting = pool.submit(first.fit, data, checkpoint=place)
        assert inside.wait(60)
        before = sorted(path.name for path in place.iterdir())
        with pytest.raises(BusyError, match="in use by another fit"):
            Headstart(adapter="bayes", quiet=True).fit(data, checkpoint=place)
        assert sorted(path.name for path in place.iterdir()) == before
        leave.set()
        assert fitting.result().features
    Headstart(adapter="bayes", quiet=True).fit(data, checkpoint=place)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_a_model_of_its_own(way: Callable[[Headstart], Headstart]) -> None:
    model = fresh()
    twin = way(model)
    twin.observe_feature("f1", {"u1": 1})
    twin.add_feature("new", observations={"u2": 2})
    model.add_feature("other", observations={"u2": 5})
    assert "new" not in model.features
    assert "other" not in twin.features
    fresh_one = fresh()
    fresh_one.add_feature("other", observations={"u2": 5})
    assert np.array_equal(model.predict().mean, fresh_one.predict().mean)


def test_a_clone_has_the_settings_and_nothing_learned() -> None:
    from sklearn.base import clone

    twin = clone(fresh())
    assert twin.get_params() == fresh().get_params()
    assert not hasattr(twin, "fitted_")


def test_after_a_refusal_nothing_has_changed() -> None:
    model = fresh()
    before = snapshot(model)
    for refused in (
        lambda: model.add_features({"a": {}, "f1": {}}),
        lambda: model.observe_feature("f1", {"u1": 99}),
        lambda: model.add_rows({"x": {}, "u1": {}}),
        lambda: model.remove_feature("nobody"),
    ):
        with pytest.raises(InputError):
            refused()
        assert snapshot(model) == before
