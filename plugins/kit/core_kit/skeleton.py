"""Creation of a new plugin package from the templates in this folder.

Owns: names, the copying, and the entry point of an additional plugin. Never does: install, or write over another file.
Called by: `core plugins new`.

A template is a working package called `my_plugin`; a copy only changes the name.
"""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from core.api.errors import UserError, nearest
from core.plugin.kinds import KINDS, RESERVED_NAMES, kind_named, normalize

TEMPLATES = Path(__file__).parent / "templates"
PLACEHOLDER = "my_plugin"
FORMS = ("speculative.draft", "kv_connector.halves")
"""Templates of kinds with more than one form: KIND.FORM."""


def kinds() -> list[str]:
    """Return the kinds that have a template."""
    return [kind.name for kind in KINDS if (TEMPLATES / kind.name).is_dir()]


def write_package(kind: str, name: str, parent: Path) -> list[Path]:
    """Write the package `core-NAME` into `parent` and return its files, the folder first. Raises UserError.

    kind: one of `kinds()`, or of `FORMS`.
    """
    plain = _checked(kind, name)
    folder = parent / f"core-{plain.replace('_', '-')}"
    if folder.exists():
        raise UserError(
            f"{folder}: exists already; remove it, choose another name or --path, or add to it with --into {folder}."
        )
    texts = {}
    for part in ("common", kind):
        for source in _files(part):
            relative = source.relative_to(TEMPLATES / part)
            target = folder / renamed(str(relative), plain, kind)
            texts[target] = _text(source, plain, kind)
    return [folder, *_written(texts)]


def add_to_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Add a plugin to the package in `folder`, with its entry point in pyproject.toml.

    Returns the files written, the folder first. Raises UserError, before anything is written, when something is there
    already or the folder holds no package with one module folder.
    """
    plain = _checked(kind, name)
    module = _module_folder(folder)
    texts = {}
    for source in _files(kind):
        part, *_ = source.relative_to(TEMPLATES / kind).parts
        text = _text(source, plain, kind)
        if part == "tests":
            texts[folder / "tests" / f"test_{plain}.py"] = _moved(text, plain, module.name)
        elif part != "README.md":
            texts[module / f"{plain}_{source.name}"] = _moved(text, plain, module.name)
    conftest = folder / "tests" / "conftest.py"
    if not conftest.exists():
        texts[conftest] = (TEMPLATES / "common" / "tests" / "conftest.py").read_text(encoding="utf-8")
    for target in texts:
        if target.exists():
            raise UserError(f"{target}: exists already; choose another name.")
    project = folder / "pyproject.toml"
    texts[project] = _with_entry(project, kind, plain, f"{module.name}.{plain}_manifest")
    return [folder, *_written(texts)]


def _checked(kind: str, name: str) -> str:
    """Return the plugin's name as an identifier. Raises UserError for an unknown kind or an impossible name."""
    known = [*kinds(), *FORMS]
    if kind not in known:
        names = ", ".join(known)
        raise UserError(f"core plugins new {kind}: no such kind; known: {names}.{nearest(kind, known)}")
    plain = normalize(name)
    taken = keyword.iskeyword(plain) or plain in RESERVED_NAMES
    if taken or not plain.isidentifier() or not plain.isascii():
        raise UserError(f"core plugins new {kind} {name}: expected a name of letters, digits and '-', such as 'rows8'.")
    return plain


def _module_folder(folder: Path) -> Path:
    """Return the only folder of Python modules of a package. Raises UserError."""
    if not (folder / "pyproject.toml").is_file():
        raise UserError(f"--into {folder}: no pyproject.toml there; expected the folder of a package.")
    found = []
    for path in sorted(folder.glob("*/__init__.py")):
        if path.parent.name != "tests":
            found.append(path.parent)
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"--into {folder}: expected one folder with an __init__.py, found {names}.")
    return found[0]


def _with_entry(project: Path, kind: str, name: str, target: str) -> str:
    """Return the text of pyproject.toml with one more entry point. Raises UserError for a duplicate name."""
    text = project.read_text(encoding="utf-8")
    group = _group(kind)
    try:
        table = tomllib.loads(text).get("project", {})
    except ValueError as error:
        raise UserError(f"{project}: cannot be read: {error}.") from error
    known = table.get("entry-points", {}).get(group, {})
    if name in map(normalize, known):
        raise UserError(f"{project}: has a {plain_kind(kind)} plugin '{name}' already; choose another name.")
    head = f'[project.entry-points."{group}"]'
    line = f'{name} = "{target}"'
    if head in text:
        return text.replace(head, f"{head}\n{line}", 1)
    return f"{text.rstrip()}\n\n{head}\n{line}\n"


def _moved(text: str, name: str, module: str) -> str:
    """Adapt a file of a one-plugin package to a package of several: its modules become NAME_manifest, and so on."""
    return re.sub(rf"\bcore_{name}\.(\w+)", rf"{module}.{name}_\1", text)


def _text(source: Path, name: str, kind: str) -> str:
    return renamed(source.read_text(encoding="utf-8"), name, kind)


def _written(texts: Mapping[Path, str]) -> list[Path]:
    """Write the files and return them. Raises UserError."""
    for target, text in texts.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error}.") from error
    return list(texts)


def plain_kind(kind: str) -> str:
    """Return the kind without its form."""
    return kind.partition(".")[0]


def _group(kind: str) -> str:
    return kind_named(plain_kind(kind)).group


def renamed(text: str, name: str, kind: str) -> str:
    """Return `text` with the plugin's name, in every spelling, and its kind replaced."""
    words = {
        "core.my_group": _group(kind),
        "my_kind": plain_kind(kind),
        "MyPlugin": "".join(part.capitalize() for part in name.split("_")),
        "my-plugin": name.replace("_", "-"),
        PLACEHOLDER: name,
    }
    any_word = "|".join(map(re.escape, words))
    return re.sub(any_word, lambda found: words[found[0]], text)


def _files(part: str) -> list[Path]:
    found = []
    for path in sorted((TEMPLATES / part).rglob("*")):
        built = "__pycache__" in str(path) or ".egg-info" in str(path)
        if path.is_file() and not built:
            found.append(path)
    return found
