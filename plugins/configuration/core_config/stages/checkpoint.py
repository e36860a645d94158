"""The first stages: from a model reference to its manifest, through the loader for its files.

Owns: reference → path → loader → manifest, configuration overrides. Never does: read weights.
Called by: resolve.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import CheckpointError, CoreError, PluginError
from core.plugin.discovery import origin
from core.plugin.hookspecs import LoadContext
from core.plugin.registry import PluginRegistry
from core.plugin.table import load_plugin
from core_config.locating.default_model import NAME, default_model
from core_config.locating.files import file_facts
from core_config.locating.projectors import AUTO, NONE, projector_file, why_none
from core_config.locating.reference import Reference, is_hub_name, read_reference
from core_config.rules import Facts
from core_config.selection import select_loader
from core_config.selection.ranking import Choice
from core_config.stages.settings import Settings
from core_runtime.models.families.wrappers import overridden
from core_runtime.specs.checkpoint import CheckpointManifest
from core_tokens.checkpoint_files import read_json

CONFIG = "config.json"
GGUF = "gguf"
"""Name of the loader for GGUF files, which alone has projectors."""
MISTRAL = "mistral"
"""Name of the loader for models with params.json in place of config.json, and of that form."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was located and resolved.

    path: path that loaders receive.
    served_as: name of the model when the user gives none.
    loader: the choice of the loader.
    manifest: manifest as the loader resolved it.
    """

    path: str
    served_as: str
    loader: Choice
    manifest: CheckpointManifest


def find_checkpoint(settings: Settings, registry: PluginRegistry, known: Facts) -> Checkpoint:
    """Locate, claim and resolve the model. Facts learned on the way are stored in `known`. Raises UserError or
    PluginError.
    """
    ref = settings["model"]
    if ref is None:
        path, served_as = str(default_model()), NAME
        settings.derive("model", path, "no model was named: the embedded one")
    else:
        path, served_as = _located(settings, ref, known), ref
    name = settings["load_format"]
    facts = file_facts(path)
    known.magic = facts.magic
    loader = select_loader(registry, None if name == "auto" else name, facts)
    if name == "auto":
        settings.derive("load_format", loader.manifest.row.name, loader.selection.why)
    _check_config_format(settings["config_format"], loader.manifest.row.name)
    manifest = _with_projector(settings, loader, path, known)
    manifest = manifest or _resolve(loader, path, settings["model_loader_extra_config"])
    if settings["hf_config_path"] is not None:
        manifest = msgspec.structs.replace(manifest, config=_other_config(settings, loader.manifest.row.name))
    overrides = settings["hf_overrides"]
    if callable(overrides):
        from core_config.stages.function_overrides import overrides_of

        overrides = overrides_of(overrides, manifest.config)
        settings.replace("hf_overrides", overrides, "what the function changes")
    if overrides:
        manifest = msgspec.structs.replace(manifest, config=overridden(manifest.config, overrides))
    return Checkpoint(path, served_as, loader, manifest)


def find_tokenizer(settings: Settings) -> str | None:
    """Return the local directory (or file) of `--tokenizer`; None without one, or with `--skip-tokenizer-init`. Raises
    UserError.
    """
    ref = settings["tokenizer"]
    if ref is None or settings["skip_tokenizer_init"]:
        return None
    path = Path(ref).expanduser()
    if path.exists():
        return str(path.absolute())
    if not is_hub_name(ref):
        raise CheckpointError(f"--tokenizer {ref}: no such file or directory.")
    from core_config.locating.fetched import fetched_tokenizer

    return fetched_tokenizer(settings, ref)


def _other_config(settings: Settings, loader: str) -> dict[str, Any]:
    """Return the configuration of `--hf-config-path`. Raises CheckpointError."""
    ref = settings["hf_config_path"]
    if loader == GGUF:
        raise CheckpointError(
            f"--hf-config-path {ref}: a GGUF model is read by the keys of its own file; --hf-overrides replaces values of them."
        )
    path = Path(ref).expanduser()
    if not path.exists():
        if not is_hub_name(ref):
            raise CheckpointError(f"--hf-config-path {ref}: no such directory; expected one with a config.json.")
        from core_config.locating.fetched import fetched_config

        path = Path(fetched_config(settings, ref))
    file = path / CONFIG if path.is_dir() else path
    found = read_json(file)
    if not isinstance(found, dict) or not (found.get("model_type") or found.get("architectures")):
        raise CheckpointError(f"--hf-config-path {file}: names neither model_type nor architectures.")
    return found


def _located(settings: Settings, ref: str, known: Facts) -> str:
    """Return the location that loaders receive: an absolute path or a URL. Raises UserError."""
    reference = read_reference(ref)
    if reference.kind == "url":
        return ref
    if reference.kind == "path":
        return _local(reference)
    from core_config.locating.fetched import fetched_model

    path = fetched_model(settings, ref, reference)
    known.snapshot = path
    return path


def _local(reference: Reference) -> str:
    """Return an absolute path; for a directory of GGUF models alone, the file of the chosen one. Raises
    CheckpointError.
    """
    path = Path(reference.name).expanduser().absolute()
    if reference.quant is not None and not path.is_dir():
        raise CheckpointError(f"model '{reference.name}': is a file, of which ':{reference.quant}' chooses nothing.")
    try:
        names = os.listdir(path)
    except (OSError, ValueError):
        return str(path)  # a file, or nothing readable: a later stage reports it
    is_model = any(name == "config.json" or name.endswith(".safetensors") for name in names)
    has_gguf = any(name.lower().endswith(".gguf") for name in names)
    if reference.quant is None and (is_model or not has_gguf):
        return str(path)
    from core_config.locating.gguf_choice import choose_model

    inside = [entry.relative_to(path).as_posix() for entry in path.glob("**/*") if entry.is_file()]
    return str(path / choose_model(inside, reference.quant, reference.name)[0])


def _with_projector(settings: Settings, choice: Choice, path: str, known: Facts) -> CheckpointManifest | None:
    """Return the manifest of a GGUF model with its projector; None without one. Raises CheckpointError for one that the
    user named and that does not fit. Warnings about another are added to `known.warnings`.
    """
    wanted = settings["mmproj"]
    is_named = wanted not in (AUTO, NONE)
    if choice.manifest.row.name != GGUF:
        if is_named:
            raise CheckpointError(
                f"--mmproj {wanted}: belongs to GGUF models; the loader '{choice.manifest.row.name}' reads the tower from the "
                "checkpoint. Leave it out."
            )
        return None
    file = projector_file(wanted, path)
    if not file or settings["language_model_only"]:
        known.warnings += [said] if (said := why_none(wanted, path)) else []
        return None
    given = {**settings["model_loader_extra_config"], "mmproj": file}
    try:
        manifest = _resolve(choice, path, given)
    except CheckpointError as error:
        if is_named:
            raise
        known.warnings.append(f"The model takes text, since the projector beside it cannot be served: {error}")
        return None
    settings.derive("mmproj", file, "named" if is_named else "the projector that lies beside the model")
    settings.replace("model_loader_extra_config", given, "the projector of --mmproj is the loader's")
    return manifest


def _check_config_format(wanted: str, loader: str) -> None:
    """Raise CheckpointError when the loader reads the configuration from another file than the user requests."""
    found = MISTRAL if loader == MISTRAL else "hf"
    if wanted in ("auto", found):
        return
    way_out = f"add --load-format {MISTRAL}" if wanted == MISTRAL else "leave it out"
    raise CheckpointError(
        f"--config-format {wanted}: the loader '{loader}' reads the model's configuration in the form {found}; {way_out}."
    )


def _resolve(choice: Choice, path: str, arguments: dict[str, Any]) -> CheckpointManifest:
    """Run the loader's `resolve`. Unexpected exceptions become a PluginError."""
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
