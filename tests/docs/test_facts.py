"""Documents name commits, settings, arguments and files that exist."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.docs.test_examples import ROOT, backticked, every_document

import headstart
from headstart.adapters.base import adapter_config, adapter_names
from headstart.backbones.base import backbone_config
from headstart.evaluate import Benchmark
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig


@cache
def commits() -> frozenset[str] | None:
    """All commits of this branch; None without git or with a part of its history."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return None
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        return None
    listed = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(listed.stdout.split())


@every_document
def test_named_commits_are_in_the_history(path: Path) -> None:
    named = re.findall(r"\bcommits? `?([0-9a-f]{7,40})\b", path.read_text(encoding="utf-8"))
    if not named:
        return
    known = commits()
    if known is None:
        pytest.skip("the history of the repository is not here")
    for name in named:
        assert any(commit.startswith(name) for commit in known), name


@cache
def settings() -> dict[str, set[str]]:
    """The settings of each section of ``--set``, of all backbones and adapters."""
    backbones = [backbone_config(name) for name in ("factorisation", "pvae", "feedforward")]
    adapters = [adapter_config(name) for name in adapter_names()]
    return {
        "backbone": {name for config in backbones for name in type(config).model_fields},
        "adapter": {name for config in adapters for name in type(config).model_fields},
        "pretraining": set(PretrainingConfig.model_fields),
        "metatraining": set(MetaTrainingConfig.model_fields),
    }


@every_document
def test_named_settings_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for section, name in re.findall(r"\b(backbone|adapter|pretraining|metatraining)\.(\w+)=", text):
        assert name in settings()[section], f"{section}.{name}"
    for section, inner in re.findall(r"\b(pretraining|metatraining)=\{([^}]*)\}", text):
        for name in re.findall(r"[\"'](\w+)[\"']\s*:", inner):
            assert name in settings()[section], f"{section}: {name}"


@cache
def parameters() -> dict[str, set[str]]:
    """By name, the parameters of all functions and methods with this name in the public classes."""
    found: dict[str, set[str]] = {
        "Headstart": set(inspect.signature(headstart.Headstart.__init__).parameters)
    }
    for owner in (headstart.Headstart, headstart.Table, headstart.Prediction, Benchmark):
        for name, member in inspect.getmembers(owner, callable):
            if not name.startswith("_"):
                signature = inspect.signature(member).parameters
                found.setdefault(name, set()).update(signature)
                if any(part.kind is part.VAR_KEYWORD for part in signature.values()):  # fit, evaluate
                    found[name] |= set(inspect.signature(headstart.Table.read).parameters)
    return found


@every_document
def test_named_arguments_exist(path: Path) -> None:
    for code in backticked(path):
        for function, inside in re.findall(r"\b(\w+)\(([^()]*)\)", code):
            if function in parameters() and path.name != "service.md":
                for name in re.findall(r"(?:^|, ?)(\w+)=", inside):
                    assert name in parameters()[function], code


@every_document
def test_named_files_exist(path: Path) -> None:
    folders = "docs|benchmarks|tests|tools|src|paper|\\.github"
    for name in backticked(path):
        if re.fullmatch(rf"(?:{folders})/[\w./-]+\.(?:py|md|csv|toml|json|svg|png|yml|css)", name):
            assert (ROOT / name).exists(), name
