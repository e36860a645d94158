"""The packages of this project by their import names.

Owns: these names. Never does: import one. Called by: logging (whose loggers are ours), the blame of plugins, the state canary.
"""

from __future__ import annotations

from typing import Final

FRAMEWORK: Final = (
    "core", "core_apis", "core_commands", "core_compat", "core_config", "core_formats", "core_frontend", "core_kit",
    "core_models", "core_observers", "core_runtime", "core_supervision", "core_tokens",
)  # fmt: skip
"""Packages that call plugins; an error that is raised in one of them is no plugin's fault."""
OWN: Final = (
    *FRAMEWORK,
    "core_adapters", "core_attention", "core_distributed", "core_grammars", "core_kernels", "core_kv_connectors",
    "core_loaders", "core_media", "core_platforms", "core_policies", "core_quantization", "core_speculative",
)  # fmt: skip
"""All packages of this project."""
