"""The versions that pyproject.toml allows are those that the two files of constraints have."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_RUN = {"import-linter", "mypy", "ruff"}  # linters do not run on the lowest versions
NOT_INSTALLABLE = {"torch"}  # see constraints-lowest.txt


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def requirements(*extras: str) -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in EXTRAS[extra])]
    every = [Requirement(text) for text in texts]
    return [requirement for requirement in every if requirement.name != "headstart"]


@pytest.mark.parametrize("requirement", requirements(*EXTRAS), ids=str)
def test_every_dependency_is_pinned_within_its_bound(requirement: Requirement) -> None:
    assert pins("constraints.txt")[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("requirement", requirements("plots", "demo", "dev"), ids=str)
def test_the_lowest_version_tested_is_the_lowest_allowed(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    if name in NOT_RUN | NOT_INSTALLABLE:
        return
    (bound,) = requirement.specifier
    assert bound.operator == ">="
    assert pins("constraints-lowest.txt")[name] == Version(bound.version)


@pytest.mark.parametrize(("package", "vulnerable"), [("ray", "2.54.1"), ("starlette", "1.0.0")])
def test_versions_with_known_vulnerabilities_are_not_allowed(package: str, vulnerable: str) -> None:
    (requirement,) = {r for r in requirements(*EXTRAS) if canonicalize_name(r.name) == package}
    assert vulnerable not in requirement.specifier
