"""The first stages: from a model reference to its manifest, through the loader that knows the files.

Owns: reference → path → loader → manifest, configuration overrides. Never does: read weights.
Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core.api.checkpoint import CheckpointManifest
from core.api.errors import CheckpointError, CoreError, PluginError
from core.config import hub
from core.config.default_model import NAME, default_model
from core.config.files import file_facts, is_hub_name, is_url
from core.config.rules import Facts
from core.config.settings import Settings
from core.models.families.wrappers import overridden
from core.plugin.discovery import origin
from core.plugin.hookspecs import LoadContext
from core.plugin.ranking import Choice
from core.plugin.registry import PluginRegistry
from core.plugin.selection import select_loader
from core.plugin.table import load_plugin
from core.tokens import files


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The model that was found.

    path: what loaders are given.
    served_as: the name when the user gives none.
    loader: the choice.
    manifest: as the loader resolved it.
    """

    path: str
    served_as: str
    loader: Choice
    manifest: CheckpointManifest


def find_checkpoint(settings: Settings, registry: PluginRegistry, known: Facts) -> Checkpoint:
    """Find, claim and resolve the model; what is found on the way goes to `known`. Raises UserError or PluginError."""
    ref = settings["model"]
    if ref is None:
        path, served_as = str(default_model()), NAME
        settings.derive("model", path, "no model was named: the embedded one")
    elif is_url(ref):
        path = served_as = ref
    elif is_hub_name(ref):
        served_as = ref
        path = known.snapshot = _downloaded(settings, ref, settings["revision"], hub.PATTERNS)
    else:
        path, served_as = str(Path(ref).expanduser().absolute()), ref
    name = settings["load_format"]
    facts = file_facts(path)
    known.magic = facts.magic
    loader = select_loader(registry, None if name == "auto" else name, facts)
    if name == "auto":
        settings.derive("load_format", loader.manifest.row.name, loader.selection.why)
    manifest = _resolve(loader, path, settings["model_loader_extra_config"])
    overrides = settings["hf_overrides"]
    if overrides:
        manifest = msgspec.structs.replace(manifest, config=overridden(manifest.config, overrides))
    return Checkpoint(path, served_as, loader, manifest)


def find_tokenizer(settings: Settings) -> str | None:
    """The local directory (or file) of `--tokenizer`; None without one, or where none is wanted. Raises UserError."""
    ref = settings["tokenizer"]
    if ref is None or settings["skip_tokenizer_init"]:
        return None
    path = Path(ref).expanduser()
    if path.exists():
        return str(path.absolute())
    if not is_hub_name(ref):
        raise CheckpointError(f"--tokenizer {ref}: no such file or directory.")
    patterns = (*files.PATTERNS, *files.TEMPLATE_PATTERNS)
    return _downloaded(settings, ref, settings["tokenizer_revision"], patterns)


def _downloaded(settings: Settings, name: str, revision: str | None, patterns: Sequence[str]) -> str:
    """The local copy of a hub name. Raises UserError."""
    directory, token = settings["download_dir"], settings["hf_token"]
    return str(hub.download(name, revision=revision, directory=directory, token=token, patterns=patterns))


def _resolve(choice: Choice, path: str, arguments: dict[str, Any]) -> CheckpointManifest:
    """The loader's `resolve`, under guard."""
    row = choice.manifest.row
    try:
        loader = load_plugin(choice.manifest, LoadContext(arguments=arguments))
        manifest = loader.resolve(path)
    except (CoreError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise PluginError(
            f"loader plugin '{row.name}' ({origin(row)}): failed on '{path}': {type(error).__name__}: {error}."
        ) from error
    if not isinstance(manifest, CheckpointManifest):
        raise PluginError(f"loader plugin '{row.name}' ({origin(row)}): resolve answered no CheckpointManifest.")
    if not manifest.config.get("model_type") and not manifest.config.get("architectures"):
        raise CheckpointError(f"model '{path}': its configuration names neither model_type nor architectures.")
    return manifest
