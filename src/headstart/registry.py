"""Find adapters, backbones and metadata columns by name, also those of other packages."""

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
    """A family of classes, such as the adapters, by name.

    A *part* is a class with a ``config_type``, the class of its settings. The field ``name`` of the settings
    has the part's name as its only value, so that saved settings identify their part.

    Parameters
    ----------
    noun : str
        The word for a part in messages, such as "adapter".
    package : str
        The package whose modules define the project's own parts. Other packages add parts by an entry point
        of the group of this name, or by ``register``.
    """

    def __init__(self, noun: str, package: str) -> None:
        self.noun, self.package = noun, package
        self._parts: dict[str, type[PartT]] = {}
        self._complete = False

    def register(self, part: type[PartT]) -> type[PartT]:
        """Add a part under its name and return it; also usable as a decorator of the class.

        Registering the same class again changes nothing; another class of the same name is an error.
        """
        config = _config_type(part)
        field = config.model_fields.get("name")
        if field is None or not isinstance(field.default, str):
            raise InputError(
                f"{config.__name__} must have a field 'name' with the {self.noun}'s name, as "
                'name: Literal["mine"] = "mine"'
            )
        name = field.default
        present = self._parts.get(name)
        if present is not None and _full_name(present) != _full_name(part):
            raise InputError(
                f"there is already {self.noun} {name!r}: {_full_name(present)}; choose another name"
            )
        self._parts[name] = part
        return part

    def parts(self) -> dict[str, type[PartT]]:
        """Return all parts by name: first the project's own, then those of other packages."""
        if not self._complete:
            self._complete = True
            home = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(home.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            for point in entry_points(group=self.package):
                self.register(point.load())
            # The order must not depend on which module was imported first.
            root = self.package.partition(".")[0]
            internal = {name for name, part in self._parts.items() if part.__module__.startswith(f"{root}.")}
            self._parts = {
                name: self._parts[name] for name in sorted(self._parts, key=lambda n: (n not in internal, n))
            }
        return self._parts

    def __getitem__(self, name: object) -> type[PartT]:
        if name not in self:
            parts = self.parts()
            hint = did_you_mean(str(name), parts) or f"; there are {', '.join(parts)}"
            raise UnknownNameError(f"unknown {self.noun} {name!r}{hint}")
        return self._parts[str(name)]

    def __contains__(self, name: object) -> bool:
        # A search of all installed packages takes a tenth of the time of opening a model.
        return isinstance(name, str) and (name in self._parts or name in self.parts())

    def part_of(self, settings: Config) -> type[PartT]:
        """Return the part of these settings."""
        return self[getattr(settings, "name", type(settings).__name__)]

    def settings(self, choice: object) -> Config:
        """Return the settings of a part, given its name, settings or their saved form."""
        if isinstance(choice, Config):
            self.part_of(choice)
            return choice
        saved = {"name": choice} if isinstance(choice, str) else choice
        if not isinstance(saved, Mapping) or "name" not in saved:
            raise InputError(
                f"{_with_article(self.noun)} is chosen by its name or its settings; got {choice!r}"
            )
        return _config_type(self[saved["name"]])(**saved)

    def origin(self, settings: Config) -> str:
        """Return the installed package of these settings' part, to name it where the part is missing."""
        module = self.part_of(settings).__module__.partition(".")[0]
        if module == __name__.partition(".")[0]:
            return module  # looking it up costs more than saving a small model
        return packages_distributions().get(module, [module])[0]


def _config_type(part: Any) -> type[Config]:
    config = getattr(part, "config_type", part)  # a metadata column is its own settings
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise InputError(f"{part!r} must have a config_type, a class of settings (headstart.config.Config)")
    return config


def _full_name(part: type) -> str:
    return f"{part.__module__}.{part.__qualname__}"


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
