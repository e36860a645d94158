"""A resolution for people and for programs.

Owns: the words of `core plugins explain`. Never does: resolve. Called by: the command.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.cli.tables import print_table
from core.config.memory import human_bytes
from core.config.resolve import Resolution


def explanation(resolution: Resolution) -> dict[str, Any]:
    """Everything as plain values."""
    memory = resolution.memory
    return {
        "model": resolution.engine.model.model,
        "device": resolution.engine.device,
        "arguments": {
            name: {"value": _hidden(name, value), "origin": origin, "reason": reason}
            for name, (value, origin, reason) in resolution.arguments.items()
        },
        "selections": msgspec.to_builtins(resolution.selections),
        "memory": {
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "kv_block_bytes": memory.block,
            "num_blocks": memory.num_blocks,
            "block_size": memory.block_size,
            "kv_tokens": memory.tokens,
        },
        "plugins": msgspec.to_builtins(resolution.engine.plugins),
        "warnings": resolution.warnings,
        "waivers": resolution.waivers,
    }


def print_explanation(resolution: Resolution) -> None:
    """Arguments that are not at their default, selections with losers, and the memory plan."""
    print(f"model   {resolution.engine.model.model}")
    print(f"device  {resolution.engine.device}")
    for warning in resolution.warnings:
        print(f"warning {warning}")
    print("\nArguments (those that someone has settled)")
    rows = [
        [f"  {name}", str(_hidden(name, value)), origin, reason]
        for name, (value, origin, reason) in resolution.arguments.items()
        if origin != "default"
    ]
    print_table(("  name", "value", "from", "because"), rows)
    print("\nSelections")
    for selection in resolution.selections:
        print(f"  {selection.kind}: {', '.join(selection.chosen) or 'none'} ({selection.why})")
        for candidate in selection.candidates:
            if candidate.verdict != "chosen":
                print(f"      {candidate.name}: {candidate.verdict}: {'; '.join(candidate.reasons)}")
    print("\nSame tokens whatever runs beside a request: " + ("; ".join(resolution.waivers) or "promised"))
    memory = resolution.memory
    print("\nMemory, by shapes")
    print(f"  weights   {human_bytes(memory.weights)}")
    print(
        f"  KV cache  {human_bytes(memory.kv)}: {memory.num_blocks} blocks of {memory.block_size} tokens, "
        f"{human_bytes(memory.block)} each"
    )


def _hidden(name: str, value: Any) -> Any:
    """Secrets are not printed."""
    return "***" if name in ("api_key", "hf_token") and value else value
