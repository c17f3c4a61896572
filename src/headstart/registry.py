"""Parts found by name: the project's own, those of installed packages, and those registered by a program."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points, packages_distributions
from typing import Any, Generic, TypeVar

from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean

PartT = TypeVar("PartT")


class Registry(Generic[PartT]):
    """Classes of one family (adapters, backbones, metadata columns), each with a name and settings.

    A part is a class with a ``config_type``: its settings, whose field ``key`` has the part's name as its
    only value. The settings of a part are held, saved and read back as themselves; ``settings`` turns
    their saved form into them again. The project's own parts are all modules of ``package``; another
    package adds parts by an entry point of the group of the same name, or by ``register``.
    """

    def __init__(self, what: str, package: str, key: str = "name") -> None:
        self.what, self.package, self.key = what, package, key
        self._parts: dict[str, type[PartT]] = {}
        self._complete = False

    def register(self, part: type[PartT]) -> type[PartT]:
        """Make a part known by its name; also usable as a decorator of the class.

        Registering the same class again changes nothing; another class of the same name is refused.
        """
        config = _config_type(part)
        field = config.model_fields.get(self.key)
        if field is None or not isinstance(field.default, str):
            raise InputError(
                f"{config.__name__} must have a field {self.key!r} with the {self.what}'s name, as "
                f'{self.key}: Literal["mine"] = "mine"'
            )
        name = field.default
        there = self._parts.get(name)
        if there is not None and _full_name(there) != _full_name(part):
            raise InputError(
                f"there is already {self.what} {name!r}: {_full_name(there)}; choose another name"
            )
        self._parts[name] = part
        return part

    def parts(self) -> dict[str, type[PartT]]:
        """All parts by name: the project's own first, then those of other packages."""
        if not self._complete:
            self._complete = True
            home = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(home.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            for point in entry_points(group=self.package):
                self.register(point.load())
            # In the same order whichever module was imported first.
            root = self.package.partition(".")[0]
            own = {name for name, part in self._parts.items() if part.__module__.startswith(f"{root}.")}
            self._parts = {
                name: self._parts[name] for name in sorted(self._parts, key=lambda n: (n not in own, n))
            }
        return self._parts

    def __getitem__(self, name: object) -> type[PartT]:
        parts = self.parts()
        if not isinstance(name, str) or name not in parts:
            hint = did_you_mean(str(name), parts) or f"; there are {', '.join(parts)}"
            raise UnknownNameError(f"unknown {self.what} {name!r}{hint}")
        return parts[name]

    def __contains__(self, name: object) -> bool:
        return name in self.parts()

    def part_of(self, settings: Config) -> type[PartT]:
        """The part that these settings are of."""
        return self[getattr(settings, self.key, type(settings).__name__)]

    def settings(self, choice: object) -> Config:
        """Turn a name, settings or their saved form into settings."""
        if isinstance(choice, Config):
            self.part_of(choice)
            return choice
        given = {self.key: choice} if isinstance(choice, str) else choice
        if not isinstance(given, Mapping) or self.key not in given:
            raise InputError(f"{_article(self.what)} is chosen by its name or its settings; got {choice!r}")
        return _config_type(self[given[self.key]])(**given)

    def origin(self, settings: Config) -> str:
        """The installed package that a part comes from, to be named where the part is missing."""
        module = self.part_of(settings).__module__.partition(".")[0]
        if module == __name__.partition(".")[0]:
            return module  # most parts are; to look it up costs more than to save a small model
        return packages_distributions().get(module, [module])[0]


def _config_type(part: Any) -> type[Config]:
    config = getattr(part, "config_type", part)  # a metadata column is its own settings
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise InputError(f"{part!r} must have a config_type, a class of settings (headstart.config.Config)")
    return config


def _full_name(part: type) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _article(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"
