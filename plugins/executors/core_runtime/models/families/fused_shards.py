"""Files of one rank as vLLM saves them (`--load-format sharded_state`): matrices of one input lie one after the other.

Owns: the rules that cut them. Never does: read a file. Called by: the family table.

vLLM writes the tensors that it computes with: `qkv_proj` for `q_proj`, `k_proj` and `v_proj`, `gate_up_proj` for `gate_proj`
and `up_proj`, and a vocabulary that is padded to a multiple of 64 rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from core.api.specs import LayerSpec
from core_runtime.models.weight_rules import Cut
from core_runtime.specs.checkpoint import CheckpointManifest
from core_runtime.specs.decoder_spec import DecoderSpec

FORMAT: Final = "sharded_state"
FUSED: Final = {("q_proj", "k_proj", "v_proj"): "qkv_proj", ("gate_proj", "up_proj"): "gate_up_proj"}


def fused_shards(manifest: CheckpointManifest, spec: DecoderSpec) -> list[Cut]:
    """Return the rules for the fused matrices and the padded vocabulary of a manifest; none for other formats."""
    if manifest.format != FORMAT:
        return []
    rules: list[Cut] = []
    for index in range(len(spec.blocks)):
        for parts in spec.block_linears(index).values():
            rules += _cut(manifest, parts)
    for part in (spec.embedding(), spec.head()):
        stored = manifest.tensors.get(f"{part.name}.weight")
        if stored is not None and stored.shape[0] > part.shape[0]:
            name = f"{part.name}.weight"
            rules.append(Cut(re.escape(name), "{piece}", (name,), rows=(part.shape[0],)))
    return rules


def _cut(manifest: CheckpointManifest, parts: Sequence[LayerSpec]) -> list[Cut]:
    """Return the rule for the matrix that holds `parts`, if there is one."""
    modules, names = zip(*(part.name.rsplit(".", 1) for part in parts), strict=True)
    fused = FUSED.get(names)
    if fused is None or f"{modules[0]}.{fused}.weight" not in manifest.tensors:
        return []
    rows = tuple(part.shape[0] for part in parts)
    module = re.escape(f"{modules[0]}.{fused}")
    return [Cut(rf"{module}\.(weight|bias)", rf"{modules[0]}.{{piece}}.\1", names, rows=rows)]
