"""Tensors of parts that are made to be trained, or to be filled from a saved model."""

from __future__ import annotations

import threading

import pytest
import torch

from headstart.core.networks import initial_tensor, loading


def test_while_loading_nothing_is_made() -> None:
    def never() -> torch.Tensor:
        raise AssertionError

    with loading():
        assert initial_tensor(never, 2, 3).shape == (2, 3)
        found = []
        other = threading.Thread(target=lambda: found.append(initial_tensor(lambda: torch.ones(2), 2)))
        other.start()
        other.join()
        assert found[0].tolist() == [1.0, 1.0]  # another thread trains meanwhile
    assert initial_tensor(lambda: torch.ones(2), 2).tolist() == [1.0, 1.0]
    with pytest.raises(AssertionError):
        initial_tensor(never, 2)
