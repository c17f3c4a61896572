"""The base class of all settings: frozen, validated, with a suggestion for a misspelled name."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from headstart.errors import InputError, did_you_mean


class Config(BaseModel):
    """A frozen group of settings. An unknown name is an error that suggests the most similar setting.

    >>> class Walk(Config):
    ...     steps: int = 3
    >>> Walk(stepz=4)
    Traceback (most recent call last):
    headstart.errors.InputError: Walk has no setting 'stepz'; did you mean 'steps'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number or value is None) and _takes_only_numbers(type(self), name):
                raise InputError(f"{type(self).__name__}: setting {name!r} must be a number; got {value!r}")
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(_explain(type(self), error)) from None

    @classmethod
    def of(cls, given: object) -> Self:
        """Return ``given`` if it is settings already; otherwise build them from a mapping, or from None."""
        if isinstance(given, cls):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InputError(
                f"{cls.__name__} must map names to values, as {{'epochs': 100}}; got {type(given).__name__}"
            )
        return cls(**(given or {}))

    def revised(self, **settings: Any) -> Self:
        """Return a validated copy with some settings replaced. Settings that were never set stay defaults."""
        explicit = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**explicit, **settings})


def _takes_only_numbers(config: type[Config], name: str) -> bool:
    """Return whether a setting takes numbers, and maybe None; pydantic would also read "3" as a number."""
    field = config.model_fields.get(name)
    annotation = None if field is None else field.annotation
    return bool(types := set(get_args(annotation) or [annotation]) - {type(None), None}) and types <= {
        int,
        float,
    }


def _explain(config: type[Config], error: ValidationError) -> str:
    first = error.errors()[0]
    setting = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{config.__name__} has no setting {setting!r}{did_you_mean(setting, config.model_fields)}"
    return f"{config.__name__}: setting {setting!r}: {first['msg']}; got {first['input']!r}"
