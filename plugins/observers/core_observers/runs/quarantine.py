"""Plugins that `core plugins doctor` has found to change answers or pace.

Owns: the file with these findings, and which of them hold for what is installed. Never does: leave a plugin out. Called by: the
doctor (writes), the resolution of arguments with `--quarantine-plugins` (reads).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from core.api.config import ResolvedPlugin
from core.api.errors import UNREADABLE, UserError
from core_observers.runs.run import Package, digest_of_module, module_of

FORMAT: Final = 1
NAME: Final = "quarantine.json"
MAX_FILE: Final = 4 << 20


class Culprit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One package that changed something, in the version that did it. why: a sentence without its full stop."""

    package: Package
    why: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    culprits: list[Culprit] = []


def read_culprits(canary: Path) -> list[Culprit]:
    """Return the findings in a directory of `--state-canary`. Raises UserError for a file that is none of ours."""
    path = canary / NAME
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(MAX_FILE), type=_File)
    except FileNotFoundError:
        return []
    except UNREADABLE as error:
        raise UserError(
            f"{path} is no list of plugins in quarantine ({error}). Remove it to empty the quarantine."
        ) from error
    if found.format != FORMAT:
        raise UserError(
            f"{path}: its format is {found.format}, this version reads {FORMAT}. Remove it to empty the quarantine."
        )
    return found.culprits


def add_culprits(canary: Path, culprits: Iterable[Culprit]) -> None:
    """Add findings; one about the same code is replaced. Raises UserError, OSError."""
    known = {culprit.package.key: culprit for culprit in read_culprits(canary)}
    known |= {culprit.package.key: culprit for culprit in culprits}
    path = canary / NAME
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(_File(FORMAT, list(known.values()))), indent=1))
    draft.replace(path)


def held(culprits: Iterable[Culprit], rows: Iterable[ResolvedPlugin]) -> list[tuple[ResolvedPlugin, str]]:
    """Return (plugin, why) of each installed plugin whose code is the one that was found; other code is free again."""
    found: list[tuple[ResolvedPlugin, str]] = []
    digests: dict[str, str] = {}
    by_code = {(culprit.package.module, culprit.package.digest): culprit for culprit in culprits}
    modules = {module for module, _ in by_code}
    for row in rows:
        module = module_of(row)
        if module not in modules:
            continue
        if module not in digests:
            digests[module] = digest_of_module(module)
        culprit = by_code.get((module, digests[module]))
        if culprit is not None and f"{row.kind}.{row.name}" in culprit.package.plugins:
            found.append((row, culprit.why))
    return found
