"""The grammar of references to plugins: a name, a name with its package or kind, a package, a file, an object.

Owns: the grammar of these words, and the meaning of a value of `--plugins`. Never does: load a plugin that is installed.
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
from core.plugin.moved import keep_moved_names


@dataclass(slots=True)
class Words:
    """The meaning of a value of `--plugins`.

    added:   plugins from files and objects, which are not entry points.
    wanted:  installed plugins that are named; other plugins of the same kinds are excluded.
    blocked: installed plugins that must not be used, with the reasons.
    """

    added: list[ResolvedPlugin] = field(default_factory=list)
    wanted: list[ResolvedPlugin] = field(default_factory=list)
    blocked: dict[ResolvedPlugin, str] = field(default_factory=dict)


def read_words(words: str, rows: Sequence[ResolvedPlugin]) -> Words:
    """Parse `a,b,no:c,./file.py,module:object`. rows: the installed plugins. Raises ConfigError with every problem."""
    read = Words()
    problems: list[str] = []
    for part in words.split(","):
        word = part.strip()
        if not word:
            continue
        known = [*rows, *read.added]  # A word may name a plugin that an earlier word added.
        try:
            _read_word(word, known, read)
        except UserError as error:
            problems.append(f"--plugins {word}: {error}")
    if problems:
        raise ConfigError(problems)
    return read


def called(rows: Sequence[ResolvedPlugin], name: str) -> list[ResolvedPlugin]:
    """Return the rows that NAME, DISTRIBUTION:NAME or :NAME names."""
    owner, colon, plain = name.rpartition(":")
    wanted = normalize(plain)
    found = [row for row in rows if row.name == wanted]
    if not colon:
        return found
    distribution = normalize(owner)
    return [row for row in found if normalize(row.distribution) == distribution]


def matching(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """Return the rows that a word names, of every kind unless the word has a kind."""
    owner, colon, rest = word.rpartition(":")
    kind, _, name = rest.partition(".")  # Names of commands may also contain a dot.
    kinds = {known.name for known in KINDS}
    if kind not in kinds:
        return called(rows, word)
    of_kind = [row for row in rows if row.kind == kind]
    return called(of_kind, f"{owner}{colon}{name}")


def of_distribution(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """Return all plugins of the package that a word names."""
    distribution = normalize(word)
    packaged = [row for row in rows if row.distribution]
    return [row for row in packaged if normalize(row.distribution) == distribution]


def unknown(rows: Sequence[ResolvedPlugin], word: str) -> str:
    """Return the sentence for a word that names no plugin: the known names, and a hint at the nearest."""
    names = sorted({row.name for row in rows})
    distributions = {row.distribution for row in rows if row.distribution}
    with_kind = {f"{row.kind}.{row.name}" for row in rows}
    hint = nearest(normalize(word), names)
    if not hint:
        hint = nearest(word, sorted(distributions | with_kind))
    known = ", ".join(names) or "none"
    return f"no such plugin; known: {known}.{hint}"


def _read_word(word: str, rows: Sequence[ResolvedPlugin], read: Words) -> None:
    """Add the meaning of one word to `read`. Raises UserError."""
    is_path = word.endswith(".py") or word.startswith(("./", "../", "/"))
    if word.startswith("no:"):
        unwanted = _installed(rows, word.removeprefix("no:"))
        read.blocked |= dict.fromkeys(unwanted, f"blocked by --plugins {word}")
    elif is_path:
        path = Path(word).expanduser()
        read.added.append(_file_row(path))
    elif ":" in word and not matching(rows, word):
        read.added.append(_object_row(word))
    else:
        read.wanted += _installed(rows, word)


def _installed(rows: Sequence[ResolvedPlugin], word: str) -> list[ResolvedPlugin]:
    """Return the plugins that a word names, or else all plugins of the package that it names. Raises UserError."""
    found = matching(rows, word) or of_distribution(rows, word)
    if not found:
        raise UserError(unknown(rows, word))
    return found


def _file_row(path: Path) -> ResolvedPlugin:
    """Make the row of a plugin in a single file, which states its kind as `KIND = "..."`."""
    if not path.is_file():
        raise UserError(f"no such file: {path}.")
    absolute = path.resolve()
    return _constant_row(f"file:{absolute}", lambda: import_file(absolute))


def _object_row(word: str) -> ResolvedPlugin:
    """Make the row of `module:object`, which states its kind as `KIND = "..."`."""
    name, _, attribute = word.partition(":")

    def load() -> Any:
        module = importlib.import_module(name)
        return getattr(module, attribute)

    return _constant_row(word, load)


def _constant_row(target: str, load: Callable[[], Any]) -> ResolvedPlugin:
    """Make a row from the manifest's own `KIND` and the name in its spec. Raises UserError when it has neither."""
    try:
        keep_moved_names()
        module = load()
        kind = kind_named(module.KIND).name
        name = normalize(module.core_spec().name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # BaseException: the user's module may also call sys.exit.
        kinds = ", ".join(kind.name for kind in KINDS)
        text = f"{type(error).__name__}: {error}"
        raise UserError(
            f"cannot be used: {text}; expected a manifest with KIND, one of {kinds}, and core_spec."
        ) from error
    source = source_file(target)
    checksum = sha256_of(source) if source else ""
    return ResolvedPlugin(kind=kind, name=name, target=target, sha256=checksum)
