"""Add documents outside of docs/ to the site: README, changelog, contributing, peers.

Links in the documents are relative to the repository; these hooks rewrite them for the site. A link to a file
that is no page of the site, such as a source file, becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {  # page of the site: document of the repository
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "peers.md": "benchmarks/peers/README.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\]\\]|\\.)*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the repository as pages."""
    for page, document in PAGES.items():
        content = (ROOT / document).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Rewrite the links of one page."""
    here = page.file.src_uri
    document = PAGES.get(here, f"docs/{here}")

    def rewrite(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
        target_page = _site_path(wanted)
        if target_page is None:
            return text
        relative = posixpath.relpath(target_page, posixpath.dirname(here) or ".")
        return f"{image}[{text}]({relative}{anchor})"

    return _LINK.sub(rewrite, markdown)


def _site_path(document: str) -> str | None:
    """Return the page of a document of the repository, or None if the site does not have it."""
    for page, source in PAGES.items():
        if document == source:
            return page
    return document.removeprefix("docs/") if document.startswith("docs/") else None
