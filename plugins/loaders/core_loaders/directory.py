"""Directories in Hugging Face's layout without their weights: configuration, generation defaults, tokenizer.

Owns: the reading of these JSON files. Never does: read weights. Called by: the loaders.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.api.errors import CheckpointError
from core_runtime.specs.checkpoint import CheckpointManifest, TensorInfo, TokenizerSource
from core_runtime.specs.declaration import FILES, KEYS, find_declaration, named
from core_tokens import checkpoint_files
from core_tokens.files import has_tokenizer

DRAFTS: Final = {"medusa_num_heads": "medusa", "speculators_model_type": "speculator_model"}
"""Configuration keys that identify drafts without a model type, and the type that each implies."""

PARTS: Final = {"qwen2_5_omni": "thinker_config"}
"""Model type of several models in one checkpoint, and the key of the one that writes text, which alone is served."""


class ModelDirectory(NamedTuple):
    """A model directory, without its weights.

    path: absolute.
    config: `config.json`, including a quantization declared in a separate file.
    generation: `generation_config.json`, with the configuration's special tokens where it names none.
    tokenizer: the directory itself, if it has tokenizer files.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    tokenizer: TokenizerSource

    def manifest(
        self,
        ref: str,
        form: str,
        files: Sequence[str | Path],
        tensors: dict[str, TensorInfo],
        metadata: dict[str, str] | None = None,
    ) -> CheckpointManifest:
        """Return the manifest of the model with these weights. form: name of their format."""
        names = [str(file) for file in files]
        _, config, generation, tokenizer = self
        return CheckpointManifest(ref, form, names, tensors, config, tokenizer, generation, metadata or {})


def read_directory(
    ref: str,
    config_name: str = "config.json",
    translate: Callable[[Path, dict[str, Any]], dict[str, Any]] | None = None,
) -> ModelDirectory:
    """Read the directory. Raises CheckpointError when it is not a directory, or its configuration is missing or
    invalid.

    config_name: name of the configuration file.
    translate: converts that file (path, content) to the style of `config.json`, for formats with another style.
    """
    path = Path(os.path.abspath(Path(ref).expanduser()))
    _check_there(ref, path, config_name)
    config_path = path / config_name
    config = read_json(config_path)
    if translate is not None:
        config = translate(config_path, config)
    config = _part_of(config)
    for key, named_so in DRAFTS.items():
        if key in config:
            config.setdefault("model_type", named_so)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{config_path}: model_type is {model_type!r}, expected a name.")
    if find_declaration(config) is None:
        declaration = _own_declaration(path)
        if declaration:
            config = {**config, KEYS[0]: declaration}
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if config.get(key) is not None:
            generation.setdefault(key, config[key])
    tokenizer = TokenizerSource(directory=str(path) if has_tokenizer(path) else None)
    return ModelDirectory(path, config, generation, tokenizer)


def _part_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the model that is served, of a checkpoint with several."""
    part = config.get(PARTS.get(str(config.get("model_type")), ""))
    if not isinstance(part, dict):
        return config
    declared = {key: config[key] for key in KEYS if config.get(key) is not None}
    return {**declared, **part}


def _check_there(ref: str, path: Path, config_name: str) -> None:
    if not path.exists():
        raise CheckpointError(f"{ref}: there is no such directory; expected one with {config_name}.")
    if not path.is_dir():
        raise CheckpointError(f"{ref}: is a file; expected a directory with {config_name}.")
    if not (path / config_name).is_file():
        raise CheckpointError(f"{ref}: the directory has no {config_name}; expected a model with its configuration.")


def _own_declaration(path: Path) -> dict[str, Any]:
    """Return a quantization declared in a separate file; empty without one."""
    for name, method in FILES.items():
        file = path / name
        if file.is_file():
            return named(read_json(file), method)
    return {}


def read_json(path: Path, most: int = checkpoint_files.MAX_SMALL) -> dict[str, Any]:
    """Read a JSON object. most: limit on the file's bytes. Raises CheckpointError naming the file."""
    found = checkpoint_files.read_json(path, most)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(found).__name__}, expected an object.")
    return found
