"""Stand-ins for optional libraries and for interruptions, entered where Python and torch look for them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch

from headstart.registry import Registry
from headstart.table.text_encoders import PACKAGE


def hide_modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let modules seem not to be installed, until the test ends."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def install_module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> None:
    """Let a module with these attributes seem to be installed, until the test ends."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def write_weights(folder: Path, content: bytes) -> str:
    """Write the weights of a sentence encoder to a folder and return their digest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def install_encoders(monkeypatch: pytest.MonkeyPatch, folder: Path, load: Callable[[], Any]) -> None:
    """Let a library of sentence encoders seem to be installed, with one downloaded to ``folder``.

    ``load`` is called when a model is loaded, and returns the function that encodes a list of texts.
    """

    class SentenceTransformer:
        def __init__(
            self, folder: str, local_files_only: bool, trust_remote_code: bool, model_kwargs: dict[str, bool]
        ) -> None:
            assert local_files_only
            assert not trust_remote_code
            assert model_kwargs == {"use_safetensors": True}
            self._encode = load()

        def encode(self, texts: list[str], **_: object) -> Any:
            return self._encode(texts)

    def nothing() -> None:
        return None

    install_module(monkeypatch, "sentence_transformers", SentenceTransformer=SentenceTransformer)
    shown = {"is_progress_bar_enabled": nothing, "disable_progress_bar": nothing}
    install_module(monkeypatch, "transformers.utils.logging", **shown)
    install_module(
        monkeypatch, "huggingface_hub", snapshot_download=lambda name, local_files_only: str(folder)
    )
    hide_modules(monkeypatch, PACKAGE)


class Interruption(BaseException):
    """Raised by ``training_steps`` in the middle of training."""


@contextmanager
def training_steps(stop_before: int | None = None) -> Iterator[list[int]]:
    """Count the steps of gradient descent within the block; interrupt before the step of this number."""
    backward, steps = torch.Tensor.backward, [0]

    def count(self: torch.Tensor, *args: Any, **named: Any) -> None:
        if steps[0] == stop_before:
            raise Interruption
        steps[0] += 1
        backward(self, *args, **named)

    with patch.object(torch.Tensor, "backward", count):
        yield steps


@contextmanager
def registered(registry: Registry[Any], *parts: type) -> Iterator[None]:
    """Register parts of another package within the block."""
    before = dict(registry.parts())
    try:
        for part in parts:
            registry.register(part)
        yield
    finally:
        for name in registry.parts().keys() - before.keys():
            del registry.parts()[name]
