"""Parts found by name: those of the project, of other packages, and of a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import pytest
from tests.limits import Limits
from tests.stand_ins import registered

from headstart.adapters import ADAPTERS, Adapter, AdapterConfig, adapter_config, adapter_names
from headstart.adapters.baselines import MeanConfig, MeanOfContext
from headstart.backbones import BACKBONES, backbone_config
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError
from headstart.registry import Registry


class PlainConfig(AdapterConfig):
    name: Literal["plain"] = "plain"
    size: int = 3


class Plain(MeanOfContext):
    config_type: ClassVar[type[AdapterConfig]] = PlainConfig


class OtherConfig(AdapterConfig):
    name: Literal["plain"] = "plain"


class Other(MeanOfContext):
    config_type: ClassVar[type[AdapterConfig]] = OtherConfig


class Point:
    """An entry point of an installed package."""

    def __init__(self, part: object) -> None:
        self._part = part

    def load(self) -> object:
        return self._part


@pytest.fixture
def empty(limits: Limits) -> Callable[..., Registry[Adapter]]:
    """A registry of a package that holds no parts itself, beside entry points of other packages."""
    asked: list[str] = []

    def build(*points: object) -> Registry[Adapter]:
        def entry_points(*, group: str) -> list[Point]:
            asked.append(group)
            return [Point(part) for part in points]

        limits(find_entry_points=entry_points)
        made: Registry[Adapter] = Registry("adapter", "headstart.linalg")
        made.asked = asked  # type: ignore[attr-defined]
        return made

    return build


def test_a_registered_part_is_found_by_its_name(empty: Callable[..., Registry[Adapter]]) -> None:
    parts = empty()
    assert parts.register(Plain) is Plain  # so it serves as a decorator
    assert parts["plain"] is Plain
    assert "plain" in parts
    assert "other" not in parts
    assert parts.parts() == {"plain": Plain}
    assert parts.part_of(PlainConfig()) is Plain
    for choice in ("plain", {"name": "plain"}, PlainConfig()):
        assert parts.settings(choice) == PlainConfig()
    assert parts.settings({"name": "plain", "size": 5}) == PlainConfig(size=5)
    saved = PlainConfig(size=5).model_dump(mode="json")
    assert parts.settings(saved) == PlainConfig(size=5)


def test_registering_again_changes_nothing_but_another_of_the_name_is_refused(
    empty: Callable[..., Registry[Adapter]],
) -> None:
    parts = empty()
    parts.register(Plain)
    parts.register(Plain)
    with pytest.raises(InputError, match=r"there is already adapter 'plain': .*Plain; choose another name"):
        parts.register(Other)
    assert parts["plain"] is Plain


def test_what_is_no_part_is_refused(empty: Callable[..., Registry[Adapter]]) -> None:
    class NamelessConfig(Config):
        size: int = 3

    class Nameless:
        config_type = NamelessConfig

    class OpenConfig(AdapterConfig):
        size: int = 3

    class Open:
        config_type = OpenConfig

    parts = empty()
    for wrong in (Nameless, Open):
        with pytest.raises(InputError, match=r"must have a field 'name' with the adapter's name"):
            parts.register(wrong)  # type: ignore[arg-type]
    for nothing in (object, 3, type("Bare", (), {"config_type": int})):
        with pytest.raises(InputError, match="must have a config_type"):
            parts.register(nothing)  # type: ignore[arg-type]
    assert parts.parts() == {}


def test_an_unknown_name_is_refused_with_the_nearest_or_all(
    empty: Callable[..., Registry[Adapter]],
) -> None:
    parts = empty()
    parts.register(Plain)
    with pytest.raises(UnknownNameError, match=r"unknown adapter 'plane'; did you mean 'plain'\?"):
        parts["plane"]
    with pytest.raises(UnknownNameError, match="unknown adapter 'xyz'; there are plain"):
        parts.settings({"name": "xyz"})
    with pytest.raises(UnknownNameError, match="unknown adapter 'mean'; there are plain"):
        parts.settings(MeanConfig())
    with pytest.raises(UnknownNameError, match="unknown adapter 7"):
        parts[7]
    for choice in (7, None, {}, {"size": 3}):
        with pytest.raises(InputError, match="an adapter is chosen by its name or its settings; got"):
            parts.settings(choice)
    with pytest.raises(InputError, match="has no setting 'sise'; did you mean 'size'"):
        parts.settings({"name": "plain", "sise": 3})


def test_parts_of_installed_packages_are_found_by_their_entry_points(
    empty: Callable[..., Registry[Adapter]],
) -> None:
    parts = empty(Plain)
    assert parts["plain"] is Plain
    assert list(parts.parts()) == ["plain"]
    assert parts.asked == ["headstart.linalg"]  # type: ignore[attr-defined]  # once, of this group


def test_two_packages_of_one_name_are_told_apart(empty: Callable[..., Registry[Adapter]]) -> None:
    with pytest.raises(InputError, match="there is already adapter 'plain'"):
        empty(Plain, Other).parts()


def test_the_package_a_part_comes_from_is_named(
    empty: Callable[..., Registry[Adapter]], monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    parts = empty()
    parts.register(MeanOfContext)
    parts.register(Plain)
    monkeypatch.setattr(Plain, "__module__", "plainly.parts")
    limits(find_packages=lambda: {"headstart": ["headstart"], "plainly": ["py-plain"]})
    assert parts.origin(MeanConfig()) == "headstart"
    assert parts.origin(PlainConfig()) == "py-plain"
    limits(find_packages=dict)  # a part of a program
    assert parts.origin(PlainConfig()) == "plainly"


def test_the_projects_own_parts_are_found_without_being_imported() -> None:
    """In a fresh interpreter nothing but the names is asked for."""
    program = (
        "from headstart.adapters.base import ADAPTERS, adapter_config\n"
        "from headstart.backbones.base import BACKBONES\n"
        "print(sorted(ADAPTERS.parts()), sorted(BACKBONES.parts()), adapter_config('knn-3').neighbours)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip() == f"{sorted(ADAPTERS.parts())} {sorted(BACKBONES.parts())} 3"
    assert {"bayes", "chn", "chn-bayes", "fine-tuned", "knn", "maml", "mean", "random", "train"} <= set(
        ADAPTERS.parts()
    )
    assert {"factorisation", "feedforward", "pvae"} <= set(BACKBONES.parts())


@pytest.fixture
def plain_registered() -> Iterator[None]:
    with registered(ADAPTERS, Plain):
        yield


@pytest.mark.usefixtures("plain_registered")
def test_a_registered_adapter_is_one_like_all_others() -> None:
    assert "plain" in adapter_names()
    assert adapter_config("plain") == PlainConfig()
    assert adapter_config("plain-train-2").base == PlainConfig()
    saved = adapter_config("plain-train-2").model_dump(mode="json")
    assert saved["base"] == {"name": "plain", "size": 3}  # settings of any part are saved whole
    assert adapter_config(saved) == adapter_config("plain-train-2")


def test_every_registered_part_names_itself_and_its_settings() -> None:
    for name, adapter in ADAPTERS.parts().items():
        assert adapter.config_type.model_fields["name"].default == name
        assert issubclass(adapter.config_type, AdapterConfig)
    for name, backbone in BACKBONES.parts().items():
        assert backbone_config(name).name == name
        assert type(backbone_config(name)) is backbone.config_type
