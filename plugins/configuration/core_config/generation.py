"""Default sampling parameters and the tokens that end a sequence.

Owns: the sources of both. Never does: sample. Called by: resolve.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.api.errors import UserError, nearest
from core_runtime.specs.checkpoint import CheckpointManifest

KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "eos_token_id")
NONE = ("none", "core", "vllm")


def generation_defaults(manifest: CheckpointManifest, source: str, override: dict[str, Any]) -> dict[str, Any]:
    """Return the generation configuration, in Hugging Face's names, that requests start from.

    source: `auto`, `none` or a directory. Raises UserError for an unreadable directory or an unknown key in `override`.
    """
    if source == "auto":
        values = dict(manifest.generation)
    elif source in NONE:
        values = {}
    else:
        path = Path(source).expanduser()
        path = path / "generation_config.json" if path.is_dir() else path
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(
                f"--generation-config {source}: expected auto, none or a directory with generation_config.json: {error}."
            ) from error
        if not isinstance(values, dict):
            raise UserError(f"--generation-config {source}: {path} holds no JSON object.")
    for key, value in override.items():
        name = override_name(key)
        if name not in KEYS:
            known = ", ".join(KEYS)
            raise UserError(f"--override-generation-config.{key}: unknown key; known: {known}.{nearest(name, KEYS)}")
        values[name] = value
    return {key: value for key, value in values.items() if key in KEYS and value is not None}


def override_name(key: str) -> str:
    """Return the name in generation configurations for a key of --override-generation-config."""
    return "max_new_tokens" if key in ("max_tokens", "max-tokens") else key.replace("-", "_")


def eos_token_ids(manifest: CheckpointManifest, generation: dict[str, Any]) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of the generation configuration (else of the model's), and the tokenizer's
    own.
    """
    declared = generation.get("eos_token_id")
    if declared is None:
        declared = manifest.config.get("eos_token_id")
    found = [declared] if isinstance(declared, int) else list(declared or ())
    vocabulary = manifest.tokenizer.vocabulary
    if vocabulary is not None and vocabulary.eos_token_id is not None:
        found.append(vocabulary.eos_token_id)
    return tuple(dict.fromkeys(found))
