"""Documents fields by the comment beside them, as the source does: ``epochs: int = 200  # at most``."""

from __future__ import annotations

import re
from typing import Any

import griffe

_COMMENT = re.compile(r".*?\s#\s(?!type:|noqa|fmt:)(.+)$")


class FieldComments(griffe.Extension):
    """Takes the comment at the end of a field's line for its docstring, where it has none."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:  # noqa: ARG002
        """Look at the line of one attribute."""
        if attr.docstring is not None or attr.lineno is None or not isinstance(attr.filepath, object):
            return
        lines = attr.lines_collection[attr.filepath] if attr.filepath in attr.lines_collection else []
        for line in lines[attr.lineno - 1 : attr.endlineno]:
            comment = _COMMENT.match(line)
            if comment:
                text = comment[1].strip()
                attr.docstring = griffe.Docstring(text[0].upper() + text[1:], parent=attr)
                return
