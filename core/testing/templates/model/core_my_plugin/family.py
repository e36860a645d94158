"""The family: a row of what distinguishes it, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.api.decoder_spec import DecoderSpec
from core.models.families import Family, decoder_spec

ROW = Family(name="my_plugin", model_types=("my_plugin",), architectures=("MyPluginForCausalLM",), qkv_bias=True)
NAMES = {
    "decoder.words": "model.embed_tokens",
    "decoder.last_norm": "model.norm",
    "decoder.": "model.",
}
"""What stands at the start of a checkpoint's name, and what stands there canonically."""


class MyPluginFamily:
    """Implements `core.plugin.contracts.ModelFamily`."""

    def decoder_spec(self, hf_config: Mapping[str, Any]) -> DecoderSpec:
        """The configuration has the usual names; only the query, key and value layers have a bias."""
        return decoder_spec(hf_config, ROW)

    def canonical_name(self, name: str) -> str:
        """`decoder.words.weight` is `model.embed_tokens.weight`, and so on."""
        for start, canonical in NAMES.items():
            if name.startswith(start):
                return canonical + name.removeprefix(start)
        return name
