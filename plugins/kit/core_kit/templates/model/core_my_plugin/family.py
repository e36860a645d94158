"""The family: a row of what distinguishes it from llama, the names of its tensors included."""

from __future__ import annotations

import re

from core_runtime.models.families import Family
from core_runtime.models.weight_rules import Rename

NAMES = {
    "decoder.words": "model.embed_tokens",
    "decoder.last_norm": "model.norm",
    "decoder.": "model.",
}
"""What stands at the start of a checkpoint's name, and what stands there canonically."""


class MyPluginFamily:
    """Implements `core_runtime.contracts.HasRow`: the configuration has the usual names; queries, keys and values a bias."""

    row = Family(
        name="my_plugin",
        model_types=("my_plugin",),
        architectures=("MyPluginForCausalLM",),
        qkv_bias=True,
        weights=tuple(Rename(f"^{re.escape(own)}", canonical) for own, canonical in NAMES.items()),
    )
