"""Hooks of the site: pages that lie beside docs/, and links to files that the site does not have.

Owns: which files of the top folder become pages, and what becomes of a link. Never does: check links, which mkdocs does
with `strict`. Called by mkdocs (mkdocs.yml).
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""{file of the top folder: page}."""
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of the top folder."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site; what is not one keeps its text and says the path in the repository."""
    uri = page.file.src_uri
    sources = {page: name for name, page in PAGES.items()}
    source = sources.get(uri, f"docs/{uri}")
    pieces = FENCE.split(markdown)
    return "".join(
        piece if piece.startswith("```") else LINK.sub(lambda link: rewritten(link, source, uri), piece)
        for piece in pieces
    )


def rewritten(link: re.Match[str], source: str, uri: str) -> str:
    """Return what a link of the file `source` (from the top folder) becomes on the page `uri`."""
    path, _, anchor = link["target"].partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (ROOT / target / "README.md").is_file() and target.startswith("docs/"):
        target = f"{target}/README.md"
    page = PAGES.get(target) or target.removeprefix("docs/")
    on_site = target in PAGES or (target.startswith("docs/") and not target.endswith((".json", ".jsonl")))
    if on_site and (ROOT / target).is_file():
        relative = os.path.relpath(page, posixpath.dirname(uri) or ".")
        return f"{link['image']}[{link['text']}]({relative}{'#' + anchor if anchor else ''})"
    if link["text"].strip("`") in target:
        return f"`{target}`"
    return f"{link['text']} (`{target}`)"
