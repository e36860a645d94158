"""Manifest of the logits processor `whisper`. Torch-free.

Owns: the plugin's description. Called by: `core.plugin`. The configuration takes it for every model that transcribes.
"""

from __future__ import annotations

from core.plugin.hookspecs import LoadContext, PluginSpec, hookimpl
from core_runtime.contracts import LogitsProcessor

CONTRACT = 1


@hookimpl
def core_spec() -> PluginSpec:
    """Describe the plugin."""
    return PluginSpec(
        name="whisper", summary="the rules of Whisper's tokens: times that rise, in pairs; suppressed tokens"
    )


@hookimpl
def core_load(context: LoadContext) -> LogitsProcessor:
    """Build the processor."""
    from core_media.sound.token_rules import TokenRules

    return TokenRules()
