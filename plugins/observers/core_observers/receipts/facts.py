"""What all receipts of one engine have in common.

Owns: `EngineFacts`, and how each fact is found. Never does: hash whole weights (`weights` does), or see a request. Called by:
the issuer's makers, `core verify`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.api.config import EngineConfig
from core.version import __version__
from core_observers.receipts.receipt import digest_of

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
CODE: Final = (".py", ".so")
BESIDE: Final = ("kv_connector", "policy", "speculative")
"""Kinds of plugins that decide no token: drafts are verified by sampling, unless a rule of acceptance is named."""


@dataclass(frozen=True)
class EngineFacts:
    """Facts about an engine, under the names of `Receipt`."""

    version: str
    numerics: str
    instruction_set: str
    tokenizer: str
    template: str
    plugins: list[str]


def engine_facts(config: EngineConfig, numerics: str, template: object) -> EngineFacts:
    """Gather the facts. numerics: the engine's own name of them. template: source of the chat template, or several by name."""
    return EngineFacts(
        version=__version__,
        numerics=numerics if config.acceptance is None else f"{numerics}/drafts-decide",
        instruction_set=instruction_set(numerics),
        tokenizer=tokenizer_digest(config.model.tokenizer or config.model.model),
        template="" if not template else digest_of(template),
        plugins=plugin_rows(config),
    )


def instruction_set(numerics: str) -> str:
    """Return the instruction sets that numerics names, or the machine's own name where it names none."""
    names = sorted(set(re.findall(r":([a-z0-9_]+)", numerics)))
    return "+".join(names) or platform.machine()


def tokenizer_digest(place: str) -> str:
    """Return a digest of the tokenizer's files. In a single file (GGUF) it is part of the weights."""
    path = Path(place)
    if path.is_file():
        return "in the weights"
    digest = hashlib.sha256()
    for name in TOKENIZER_FILES:
        file = path / name
        if file.is_file():
            digest.update(f"{name}:{hashlib.sha256(file.read_bytes()).hexdigest()};".encode())
    return "sha256:" + digest.hexdigest()[:32]


def plugin_rows(config: EngineConfig) -> list[str]:
    """Return one row for each distribution in use: its name, version, digest of its code, and its plugins."""
    names: dict[tuple[str, str, str], list[str]] = {("core-engine", __version__, "core"): []}
    for row in config.plugins.table:
        if row.kind in BESIDE:
            continue
        package = row.target.partition(":")[0].partition(".")[0]
        names.setdefault((row.distribution, row.version, package), []).append(f"{row.kind}.{row.name}")
    rows = []
    for (distribution, version, package), plugins in sorted(names.items()):
        rows.append(" ".join([distribution, version, code_digest(package), *sorted(plugins)]))
    return rows


def code_digest(package: str) -> str:
    """Return a digest of a package's code; `unknown` for one without files."""
    found = importlib.util.find_spec(package)
    folders = [] if found is None else list(found.submodule_search_locations or [])
    files = [Path(found.origin)] if found is not None and not folders and found.origin else []
    for folder in folders:
        files += [path for path in Path(folder).rglob("*") if path.suffix in CODE and path.is_file()]
    if not files:
        return "unknown"
    return digest_of_files({path.name if not folders else _below(path, folders): path for path in files})


def digest_of_files(files: Mapping[str, Path]) -> str:
    """Return a digest of files by their names below the package's folder."""
    digests = {name: _file_digest(path) for name, path in files.items()}
    return digest_of(digests).removeprefix("sha256:")[:16]


def _below(path: Path, folders: list[str]) -> str:
    return next(str(path.relative_to(folder)) for folder in folders if path.is_relative_to(folder))


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def template_of(usual: str | None, named: Mapping[str, str], own: str | None) -> object:
    """Return the templates that decide prompts: the server's own one, else the tokenizer's usual and named ones."""
    return own or ([usual, dict(named)] if usual or named else None)
