"""A checkpoint's declaration of how its weights are packed. Torch-free.

Owns: the places where such a declaration may be, and its method's name. Never does: read files, know a method.
Called by: loaders of directories (files next to the configuration), the checkpoint's facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KEYS: Final = ("quantization_config", "compression_config")
"""Keys of a configuration that hold a declaration."""
NESTED: Final = ("text_config", "llm_config", "language_config")
"""Parts of a configuration whose declaration is used if the whole has none."""
FILES: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files that contain a declaration, and the method if they do not name one."""
UNNAMED: Final = {
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "config_groups": "compressed-tensors",
}
"""Keys of declarations that name no method, and the method that they imply."""


def find_declaration(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the declaration in a model's configuration, with its `quant_method`; None without one."""
    for place in (config, *_nested(config)):
        for key in KEYS:
            found = place.get(key)
            if isinstance(found, Mapping) and found:
                return named(found, "")
    return None


def named(declaration: Mapping[str, Any], usual: str) -> dict[str, Any]:
    """Return a declaration with a `quant_method`. usual: the method if nothing names another; may be empty."""
    method = declaration.get("quant_method") or usual
    for key, owner in UNNAMED.items():
        if not method and declaration.get(key):
            method = owner
    return {**declaration, "quant_method": method}


def method_of(declaration: Mapping[str, Any] | None) -> str | None:
    """Return a declaration's method in lower case, None without one."""
    if declaration is None:
        return None
    method = declaration.get("quant_method")
    return method.lower() if isinstance(method, str) and method else None


def _nested(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = [config.get(key) for key in NESTED]
    return [part for part in parts if isinstance(part, Mapping)]
