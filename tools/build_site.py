"""Build the site into site/: collect its pages in .site/, then call Zensical; every warning is an error.

The pages are those of docs/, the README, the changelog, the page on contributing and the README of the peers.
Links in these documents are relative to the repository; on the site they are relative to the page. A link to
a file that is no page of the site, such as a source file, becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = {  # page of the site: document of the repository
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "peers.md": "benchmarks/peers/README.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\]\\]|\\.)*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_WARNING = re.compile(r"griffe:|mkdocstrings:|WARNING")


def main() -> int:
    """Build the site, and return 0 if no page has a problem."""
    problems = collect_pages(ROOT, ROOT / ".site")
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(
        build, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    print(done.stdout, end="")
    # The strict mode of Zensical does not count the warnings of the docstrings' parser.
    problems += [line for line in done.stdout.splitlines() if _WARNING.match(line)]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return done.returncode or bool(problems)


def collect_pages(root: Path, folder: Path) -> list[str]:
    """Write the pages and images of the repository ``root`` to ``folder``, and return problems.

    Zensical does not notice these: pages missing in the navigation, entries of the navigation without
    a page, links and images without a file.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", folder)
    below_docs = [path.relative_to(folder).as_posix() for path in folder.rglob("*.md")]
    documents = {page: f"docs/{page}" for page in below_docs} | PAGES
    for page, document in documents.items():
        text = (root / document).read_text(encoding="utf-8")
        (folder / page).write_text(rewrite_links(text, page, document), encoding="utf-8")
    config = tomllib.loads((root / "zensical.toml").read_text(encoding="utf-8"))
    listed = set(_pages_of(config["project"]["nav"]))
    problems = [
        f"{page} is not in the navigation of zensical.toml" for page in sorted(documents.keys() - listed)
    ]
    problems += [
        f"zensical.toml lists {page}, which does not exist" for page in sorted(listed - documents.keys())
    ]
    for page in sorted(documents):
        for link in _LINK.finditer((folder / page).read_text(encoding="utf-8")):
            if not (folder / page).parent.joinpath(link[3]).exists():
                problems.append(f"{page} links to {link[3]}, which does not exist")
    return problems


def _pages_of(entries: list[Any]) -> Iterator[str]:
    """Iterate over the pages of a navigation, whose entries are pages or further navigations with titles."""
    for entry in entries:
        for pages in entry.values():
            yield from [pages] if isinstance(pages, str) else _pages_of(pages)


def rewrite_links(text: str, page: str, document: str) -> str:
    """Return ``text`` of a ``document`` of the repository with the links that its ``page`` needs."""

    def rewrite(link: re.Match[str]) -> str:
        image, title, target, anchor = link[1], link[2], link[3], link[4] or ""
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
        linked_page = _site_path(linked)
        if linked_page is None:
            return title
        relative = posixpath.relpath(linked_page, posixpath.dirname(page) or ".")
        return f"{image}[{title}]({relative}{anchor})"

    return _LINK.sub(rewrite, text)


def _site_path(document: str) -> str | None:
    """Return the path of a ``document`` of the repository on the site, or None if it is not there."""
    for page, source in PAGES.items():
        if document == source:
            return page
    return document.removeprefix("docs/") if document.startswith("docs/") else None


if __name__ == "__main__":
    sys.exit(main())
