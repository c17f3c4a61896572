"""The promises of every backbone there is."""

from __future__ import annotations

import pytest
import torch
from tests.backbones.conftest import random_cells

from headstart.backbones import BACKBONES, Backbone, backbone_config, build_backbone
from headstart.backbones.base import value_grid
from headstart.core.types import Description
from headstart.errors import InputError, UnknownNameError
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.pretraining import PretrainingConfig, held_out_nll, pretrain

every_backbone = pytest.mark.parametrize("name", sorted(BACKBONES.parts()))
FEATURES = 9
NOTHING = Description(torch.zeros(FEATURES, 0), [])  # is known of the features


def built(name: str, cells: Cells) -> Backbone:
    torch.manual_seed(0)
    kinds = torch.tensor([KindType.BINARY, KindType.RATING, KindType.REAL] * 3)
    return build_backbone(backbone_config(name), kinds, value_grid(cells))


def some_cells(rows: int = 12) -> Cells:
    cells = random_cells(rows, FEATURES, 0.5, seed=0)
    binary = cells.index % 3 == KindType.BINARY
    return Cells(cells.indptr, cells.index, torch.where(binary, cells.values.round(), cells.values), FEATURES)


@every_backbone
def test_the_order_of_observations_does_not_matter(name: str) -> None:
    cells = some_cells()
    turned = torch.argsort(cells.lines * 1000 - torch.arange(len(cells.index)))
    other = Cells(cells.indptr, cells.index[turned], cells.values[turned], FEATURES)
    model = built(name, cells)
    torch.testing.assert_close(model.states(cells).code, model.states(other).code)


@every_backbone
def test_a_batch_is_as_one_row_at_a_time(name: str) -> None:
    cells = some_cells()
    model = built(name, cells)
    together, apart = model.states(cells), model.states(cells, batch=1)
    torch.testing.assert_close(together.code, apart.code)
    torch.testing.assert_close(together.activation, apart.activation)


@every_backbone
def test_shapes_and_rows_without_observations(name: str) -> None:
    cells = some_cells()
    model = built(name, cells)
    nothing = model.states(cells.keep(torch.zeros(len(cells.index), dtype=torch.bool)))
    assert nothing.code.shape == nothing.code_std.shape == (12, model.code_size)
    assert nothing.activation.shape == (12, model.activation_size)
    assert torch.isfinite(nothing.activation).all()
    assert len(model.heads) == model.features == FEATURES
    assert len(model.states(cells.take(torch.zeros(0, dtype=torch.int64)))) == 0


@every_backbone
def test_masked_features_have_no_say(name: str) -> None:
    cells = some_cells()
    model = built(name, cells)
    hidden = torch.zeros(FEATURES, dtype=torch.bool)
    hidden[[1, 4]] = True
    shown = model.states(cells, hidden)
    changed = torch.where(hidden[cells.index], 1 - cells.values, cells.values)
    other = model.states(Cells(cells.indptr, cells.index, changed, FEATURES), hidden)
    assert torch.equal(shown.code, other.code)
    torch.testing.assert_close(shown.code, model.states(cells.keep(~hidden[cells.index])).code)
    assert not torch.allclose(shown.code, model.states(cells).code)


@every_backbone
def test_the_same_seed_trains_the_same_backbone_and_it_learns(name: str) -> None:
    cells = random_cells(60, FEATURES, 0.8, seed=5)
    taste = torch.linspace(0, 1, 60)[cells.lines]  # every feature follows one hidden taste
    cells = Cells(cells.indptr, cells.index, (taste + 0.05 * cells.values).round(decimals=2), FEATURES)
    kinds = torch.full((FEATURES,), KindType.RATING)
    held = torch.arange(len(cells.index)) % 5 == 0

    def trained(epochs: int) -> tuple[Backbone, float]:
        """Return a backbone and its error on what was held out, before it was trained."""
        torch.manual_seed(0)
        model = build_backbone(backbone_config(name), kinds, value_grid(cells))
        before = held_out_nll(model, cells.keep(~held), cells.keep(held))
        config = PretrainingConfig(epochs=epochs, batch_size=20, patience=None)
        pretrain(model, cells.keep(~held), NOTHING, config, seed=1, reporter=Reporter(quiet=True))
        return model, before

    model, before = trained(40)
    assert held_out_nll(model, cells.keep(~held), cells.keep(held)) < before - 0.1
    assert not any(parameter.requires_grad for parameter in model.parameters())
    (one, _), (other, _) = trained(2), trained(2)
    for mine, yours in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, yours)


@every_backbone
def test_a_saved_state_gives_the_same_backbone(name: str) -> None:
    """Constructing around what is saved computes nothing: no number is drawn from the grid or resolved."""
    cells = some_cells()
    model = built(name, cells)
    state = model.state_dict()
    config = backbone_config(model.config.model_dump())
    assert config == config.resolved(state["kinds"])  # all there was to choose has been chosen
    torch.manual_seed(99)  # another start, to be overwritten
    copy = BACKBONES.part_of(config)(config, state["kinds"], torch.full_like(state["grid"], torch.nan))
    copy.load_state_dict(state)
    assert torch.equal(copy.states(cells).code, model.states(cells).code)
    assert torch.equal(copy.states(cells).activation, model.states(cells).activation)


def test_bad_choices_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'pvae'"):
        backbone_config("pvea")
    with pytest.raises(InputError, match="has no setting 'latnt'; did you mean 'latent'"):
        backbone_config({"name": "pvae", "latnt": 3})
    with pytest.raises(InputError, match="by its name or its settings"):
        backbone_config({})
