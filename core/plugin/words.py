"""How plugins are named: a name, a name with its package or kind, a package, a file, an object.

Owns: the grammar of these words, and what a value of `--plugins` means. Never does: load a plugin that is installed.
Called by: the registry, `core plugins`.

    NAME, KIND.NAME, DISTRIBUTION:NAME, DISTRIBUTION:KIND.NAME, :NAME (a file or object that was added), DISTRIBUTION
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.api.config import ResolvedPlugin
from core.api.errors import ConfigError, UserError, nearest
from core.plugin.kinds import KINDS, kind_named, normalize
from core.plugin.manifest import import_file, sha256_of, source_file


@dataclass(slots=True)
class Words:
    """What a value of `--plugins` means.

    added: files and objects that are no entry points.
    wanted: installed plugins that are named; others of their kinds are left out.
    blocked: installed plugins that must not be used, and why.
    """

    added: list[ResolvedPlugin] = field(default_factory=list)
    wanted: list[ResolvedPlugin] = field(default_factory=list)
    blocked: dict[ResolvedPlugin, str] = field(default_factory=dict)


def read_words(words: str, rows: Sequence[ResolvedPlugin]) -> Words:
    """Read `a,b,no:c,./file.py,module:object`. rows: what is installed. Raises ConfigError with every problem."""
    read = Words()
    problems: list[str] = []
    for word in filter(None, (part.strip() for part in words.split(","))):
        try:
            _read_word(word, [*rows, *read.added], read)  # a word may name what an earlier one added
        except UserError as error:
            problems.append(f"--plugins {word}: {error}")
    if problems:
        raise ConfigError(problems)
    return read


def called(rows: Sequence[ResolvedPlugin], name: str) -> list[ResolvedPlugin]:
    """The rows that NAME, DISTRIBUTION:NAME or :NAME names."""
    owner, colon, plain = name.rpartition(":")
    wanted = normalize(plain)
    found = [row for row in rows if row.name == wanted]
    if not colon:
        return found
    return [row for row in found if normalize(row.distribution) == normalize(owner)]


def matching(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """The rows that a word for a plugin names, in every kind unless it says one."""
    owner, colon, rest = word.rpartition(":")
    kind, _, name = rest.rpartition(".")
    if kind not in {known.name for known in KINDS}:
        return called(rows, word)
    return called([row for row in rows if row.kind == kind], f"{owner}{colon}{name}")


def of_distribution(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """All plugins of the package that a word names."""
    return [row for row in rows if row.distribution and normalize(row.distribution) == normalize(word)]


def unknown(rows: Sequence[ResolvedPlugin], word: str) -> str:
    """The sentence for a word that names nothing."""
    known = sorted({row.name for row in rows})
    further = {row.distribution for row in rows if row.distribution} | {f"{row.kind}.{row.name}" for row in rows}
    hint = nearest(normalize(word), known) or nearest(word, sorted(further))
    return f"no such plugin; known: {', '.join(known) or 'none'}.{hint}"


def _read_word(word: str, rows: Sequence[ResolvedPlugin], read: Words) -> None:
    """Add one word to `read`. Raises UserError."""
    if word.startswith("no:"):
        why = f"blocked by --plugins {word}"
        read.blocked |= dict.fromkeys(_installed(rows, word.removeprefix("no:")), why)
    elif word.endswith(".py") or word.startswith(("./", "../", "/")):
        read.added.append(_file_row(Path(word).expanduser()))
    elif ":" in word and not matching(rows, word):
        read.added.append(_object_row(word))
    else:
        read.wanted += _installed(rows, word)


def _installed(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """The plugins, or else all plugins of the package, that a word names. Raises UserError."""
    found = matching(rows, word) or of_distribution(rows, word)
    if not found:
        raise UserError(unknown(rows, word))
    return found


def _file_row(path: Path) -> ResolvedPlugin:
    """A row for a plugin in a single file, which says its kind as `KIND = "..."`."""
    if not path.is_file():
        raise UserError(f"no such file: {path}.")
    return _constant_row(f"file:{path.resolve()}", lambda: import_file(path.resolve()))


def _object_row(word: str) -> ResolvedPlugin:
    """A row for `module:object`, which says its kind as `KIND = "..."`."""
    name, _, attribute = word.partition(":")
    return _constant_row(word, lambda: getattr(importlib.import_module(name), attribute))


def _constant_row(target: str, load: Callable[[], Any]) -> ResolvedPlugin:
    """A row made from the manifest's own `KIND` and from the name in its spec."""
    try:
        module = load()
        kind = kind_named(module.KIND).name
        name = normalize(module.core_spec().name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kinds = ", ".join(kind.name for kind in KINDS)
        text = f"{type(error).__name__}: {error}"
        raise UserError(
            f"cannot be used: {text}; expected a manifest with KIND, one of {kinds}, and core_spec."
        ) from error
    source = source_file(target)
    return ResolvedPlugin(kind=kind, name=name, target=target, sha256=sha256_of(source) if source else "")
