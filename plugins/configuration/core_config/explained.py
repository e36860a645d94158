"""A resolution as plain values, for programs and pages.

Owns: the choice of values that are shown, and the hiding of secrets. Never does: resolve, print. Called by: `core
config explain`, the server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from core.args.arg import HIDDEN
from core.args.schema import schema
from core_config.resolution import Resolution
from core_config.stages.memory import MemoryPlan


def explained(resolution: Resolution) -> dict[str, Any]:
    """Return the origin of every value, the chosen plugins and the memory plan, as plain values."""
    return {
        "model": resolution.engine.model.model,
        "device": resolution.engine.device,
        "arguments": {
            name: {"value": hidden(name, value), "origin": origin, "reason": reason}
            for name, (value, origin, reason) in resolution.arguments.items()
        },
        "plugins": {
            selection.kind: {
                "chosen": list(selection.chosen),
                "why": selection.why,
                "candidates": [
                    {"name": c.name, "verdict": c.verdict, "reasons": list(c.reasons), "distribution": c.distribution}
                    for c in selection.candidates
                ],
            }
            for selection in resolution.selections
        },
        "selections": msgspec.to_builtins(resolution.selections),
        "memory": memory_values(resolution.memory),
        "numerics": resolution.numerics,
        "warnings": resolution.warnings,
        "waivers": resolution.waivers,
    }


def memory_values(plan: MemoryPlan) -> dict[str, Any]:
    """Return the memory plan in bytes and tokens."""
    return {
        "weights_bytes": plan.weights,
        "offloaded_bytes": plan.offloaded,
        "slot_bytes": plan.slots,
        "proposer_bytes": plan.proposer,
        "kv_bytes": plan.kv,
        "kv_bytes_per_token": plan.kv_per_token,
        "kv_block_bytes": plan.block,
        "state_bytes": plan.state,
        "kv_groups": [[group.kind, len(group.layers), group.window] for group in plan.groups],
        "kv_readers": plan.readers,
        "num_blocks": plan.num_blocks,
        "block_size": plan.block_size,
        "kv_tokens": plan.tokens,
        "max_model_len": plan.max_model_len,
        "max_concurrency": round(plan.max_concurrency, 2),
        "workspace_bytes": plan.workspace,
        "adapter_bytes": plan.adapter,
        "num_adapters": plan.num_adapters,
        "tower_bytes": plan.tower,
        "tower_rows_bytes": plan.tower_rows,
    }


def hidden(name: str, value: Any) -> Any:
    """Return a value for display: a placeholder for a secret."""
    return HIDDEN if value and schema().fields[name.partition(".")[0]].arg.secret else value
