"""Document the fields of settings in the API reference, from their types, defaults and comments.

``epochs: int = Field(200, ge=0)  # at most`` becomes a line of a table in the reference.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

from headstart.config import Config

_FIELD = re.compile(r"^    (\w+): .*?\s#\s(?!type:|noqa|fmt:)(.+)$", re.M)
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


class FieldComments(griffe.Extension):
    """Give settings a table of parameters, and other fields their comments as docstrings."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Add the heading "Examples" to doctests without one, so that they are shown as code."""
        if obj.docstring and obj.docstring.value.count(">>>") and "Examples\n---" not in obj.docstring.value:
            before, prompt, after = obj.docstring.value.partition(">>>")
            obj.docstring.value = f"{before}Examples\n--------\n{prompt}{after}"

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:  # noqa: ARG002
        """Append the fields of a class of settings to its docstring."""
        module = importlib.import_module(cls.module.path)
        settings = getattr(module, cls.name, None)
        if not (isinstance(settings, type) and issubclass(settings, Config) and settings.model_fields):
            return
        text = cls.docstring.value if cls.docstring else ""
        if "Parameters\n---" not in text:  # otherwise the docstring lists the fields
            summary, examples, doctests = text.partition("Examples\n---")
            parts = [summary.strip(), _parameters(settings), examples + doctests]
            cls.docstring = griffe.Docstring("\n\n".join(parts), parent=cls)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:  # noqa: ARG002
        """Use the comment at the end of a field's line as its docstring, if it has none."""
        lines = _lines(attr)
        comment = _FIELD.search("\n".join(lines[(attr.lineno or 1) - 1 : attr.endlineno]))
        if attr.docstring is None and comment:
            attr.docstring = griffe.Docstring(_sentence(comment[2]), parent=attr)


def _lines(attr: griffe.Attribute) -> list[str]:
    try:
        return attr.lines_collection[attr.filepath]  # type: ignore[index]
    except KeyError:
        return []


def _parameters(settings: type[Config]) -> str:
    """Return the fields of ``settings`` as the section "Parameters" of a numpy docstring."""
    comments: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if base.__module__.startswith("headstart."):
            comments |= dict(_FIELD.findall(inspect.getsource(base)))
    lines = ["Parameters", "----------"]
    for name, field in settings.model_fields.items():
        kind = inspect.formatannotation(field.annotation).replace("typing.", "")
        kind = re.sub(r"headstart\.[\w.]*\.", "", kind)
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        shown = f"{type(value).__name__}()" if isinstance(value, Config) else repr(value)
        default = "" if field.is_required() else f", default: {shown}"
        limits = [
            f"{words} {getattr(limit, key)}"
            for limit in field.metadata
            for key, words in _LIMITS.items()
            if hasattr(limit, key) and abs(getattr(limit, key)) < 2**31  # not the limits of 64-bit numbers
        ]
        about = [*([_sentence(comments[name])] if name in comments else []), *map(_sentence, limits)]
        lines += [f"{name} : {kind}{default}", "    " + " ".join(about or ["–"])]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    text = text.strip()
    return text[0].upper() + text[1:] + ("" if text.endswith((".", ":", "…")) else ".")
