"""Check the English of docstrings, comments, error messages and documentation.

    python tools/check_prose.py              check the files listed in CHECKED
    python tools/check_prose.py PATH ...     check these files and folders

Each rule is a pattern with advice on what to write instead. ``# prose: ok`` on a line of a comment, or on the
line where a docstring or message ends, allows a rare right use; in Markdown it is ``<!-- prose: ok -->``.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

CHECKED = ("src", "benchmarks", "tools", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")

_ALLOW = "prose: ok"


class Rule(NamedTuple):
    """A pattern of words, and advice on what to write instead."""

    pattern: re.Pattern[str]
    advice: str


def _rule(pattern: str, advice: str) -> Rule:
    # A space of the pattern also matches a line break, with the mark of the comment in the next line.
    return Rule(re.compile(pattern.replace(" ", r"\s+(?:#\s*)?"), re.IGNORECASE), advice)


RULES = (
    _rule(r"\bso (many|few)\b|\bso much\b(?! (that|as))", "name the number or the parameter"),
    _rule(
        r"(?<!\bsay\s)(?<!\bsays\s)\bwhat "
        r"(is|was|are|were|has|had|there|it|they|this|all|others|each|one|a|an|the|its|their)\b"
        r"(?![^.;]*\?)",
        "use the noun instead of a clause",
    ),
    _rule(r"\b(whoever|whomever|whatever)\b", "name the actor or the thing"),
    _rule(r"\bof (which|whom)\b", "write two sentences, or a relative clause without 'of'"),
    _rule(r"\bthose (that|which|who)\b|\ball that\b", "repeat the noun: 'rows that', 'all rows that'"),
    _rule(r"\b(just )?as (it|they|there) (is|are|was|were)\b", "write 'unchanged', or name the state"),
    _rule(r"\bfor the time of\b", "write 'during'"),
    _rule(r"\bbelie(ve|ves|ved)\b|\b(tame|tames|tamed|taught|teaches|honest)\b", "use the term of the field"),
    _rule(
        r"\ball the same\b|\bmay well\b|\bby (itself|themselves)\b",
        "leave it out, or write 'anyway', 'can', 'alone'",
    ),
    # A name in backticks reaches the rules as underscores.
    _rule(r"_( \([^)]*\))? (is|are) (that|those) of\b", "repeat the noun: 'are the kinds of'"),
    _rule(r"\bfrom (which|where) on\b|\bnumber of numbers\b", "write 'the smallest … that', 'the width'"),
)

_NO_VERB = re.compile(
    r"(What|How|Which|Where|Who|When|That|Those|The|A|An|Its|All|Each|Every|At|One|Some|No|So|As|Of|In)\b"
)


class Finding(NamedTuple):
    """A place that breaks a rule."""

    path: Path
    line: int
    words: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}: {self.advice}"


def check_file(path: Path) -> list[Finding]:
    """Return the findings of one Python or Markdown file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return sorted(_check_markdown(path, source))
    lines = source.splitlines()
    tree = ast.parse(source)
    texts = [*_comment_blocks(source), *_docstrings(tree), *_messages(tree)]
    findings = [
        finding
        for start, end, text in texts
        if _ALLOW not in lines[end - 1]
        for finding in _check_text(path, start, text)
    ]
    return sorted({*findings, *_check_first_words(path, tree, lines)})


def _check_text(path: Path, start: int, text: str) -> Iterator[Finding]:
    """Yield the findings of a text that begins in the line ``start``, except in code."""
    text = re.sub(r"(`+).+?\1|^[ \t]*(>>>|\.\.\.)[^\n]*", _blank, text, flags=re.MULTILINE | re.DOTALL)
    for rule in RULES:
        for match in rule.pattern.finditer(text):
            words = " ".join(match.group().replace("#", " ").split())
            yield Finding(path, start + text.count("\n", 0, match.start()), words, rule.advice)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match.group()) if match.group(1) else ""


def _check_markdown(path: Path, source: str) -> Iterator[Finding]:
    prose = re.sub(r"^(```|~~~).*?^\1", _blank, source, flags=re.MULTILINE | re.DOTALL)
    lines = source.splitlines()
    for finding in _check_text(path, 1, prose):
        if _ALLOW not in lines[finding.line - 1]:
            yield finding


def _comment_blocks(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield the first line, last line and text of comments; comments in lines that follow are one text."""
    start, last, texts = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _ALLOW in token.string:
            continue
        alone = token.line.lstrip().startswith("#")
        if texts and not (alone and token.start[0] == last + 1):
            yield start, last, "\n".join(texts)
            texts = []
        start = start if texts else token.start[0]
        last = token.start[0]
        texts.append(token.string)
    if texts:
        yield start, last, "\n".join(texts)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = _docstring(node)
            if docstring is not None:
                yield docstring.lineno, docstring.end_lineno or docstring.lineno, str(docstring.value)


def _docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> ast.Constant | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value if isinstance(first.value.value, str) else None
    return None


def _messages(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Yield the literal texts of raised exceptions."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Raise):
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.lineno, node.end_lineno or node.lineno, node.value


def _check_first_words(path: Path, tree: ast.Module, lines: list[str]) -> Iterator[Finding]:
    """Yield the docstrings of functions that do not start with a verb. Properties may be noun phrases."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = " ".join(ast.unparse(decorator) for decorator in node.decorator_list)
        docstring = None if re.search("property|fixture|setter", decorators) else _docstring(node)
        if docstring is None or _ALLOW in lines[(docstring.end_lineno or docstring.lineno) - 1]:
            continue
        text = str(docstring.value).lstrip()
        if _NO_VERB.match(text) or text.startswith("Whether"):
            words = text.split(maxsplit=1)[0]
            yield Finding(path, docstring.lineno, words, "start with an imperative verb, as 'Return whether'")


def find_files(places: list[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files in these places."""
    for place in places:
        if place.is_dir():
            yield from sorted(path for path in place.rglob("*") if path.suffix in (".py", ".md"))
        else:
            yield place


def main(arguments: list[str] | None = None) -> int:
    """Print the findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    places = options.paths or [ROOT / name for name in CHECKED]
    findings = [finding for path in find_files(places) for finding in check_file(path)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
