"""A new plugin package, written from the templates beside this file.

Owns: names, and the copying. Never does: install, or write over a file. Called by: `core plugins new`.

A template is a package that works as it stands, called `my_plugin`; a copy only changes the name.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from core.api.errors import UserError, nearest
from core.plugin.kinds import KINDS, RESERVED_NAMES, normalize

TEMPLATES = Path(__file__).parent / "templates"
PLACEHOLDER = "my_plugin"


def kinds() -> list[str]:
    """Kinds that have a template."""
    return [kind.name for kind in KINDS if (TEMPLATES / kind.name).is_dir()]


def write_package(kind: str, name: str, parent: Path) -> list[Path]:
    """Write the package `core-NAME` into `parent` and return its files, the folder first. Raises UserError."""
    if kind not in kinds():
        raise UserError(f"core plugins new {kind}: no such kind; known: {', '.join(kinds())}.{nearest(kind, kinds())}")
    plain = normalize(name)
    if not plain.isidentifier() or keyword.iskeyword(plain) or not plain.isascii() or plain in RESERVED_NAMES:
        raise UserError(f"core plugins new {kind} {name}: expected a name of letters, digits and '-', such as 'rows8'.")
    folder = parent / f"core-{plain.replace('_', '-')}"
    if folder.exists():
        raise UserError(f"{folder}: exists already; remove it, or choose another name or --path.")
    sources = [(path, path.relative_to(TEMPLATES / part)) for part in ("common", kind) for path in _files(part)]
    written = []
    try:
        for source, relative in sources:
            target = folder / renamed(str(relative), plain, kind)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(renamed(source.read_text(encoding="utf-8"), plain, kind), encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error}.") from error
    return [folder, *written]


def renamed(text: str, name: str, kind: str) -> str:
    """`text` with the plugin's name in every spelling, and its kind."""
    group = next(known.group for known in KINDS if known.name == kind)
    words = {
        "core.my_group": group,
        "my_kind": kind,
        "MyPlugin": "".join(part.capitalize() for part in name.split("_")),
        "my-plugin": name.replace("_", "-"),
        PLACEHOLDER: name,
    }
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)


def _files(part: str) -> list[Path]:
    skipped = ("__pycache__", ".egg-info")
    return sorted(
        path
        for path in (TEMPLATES / part).rglob("*")
        if path.is_file() and not any(word in str(path) for word in skipped)
    )
