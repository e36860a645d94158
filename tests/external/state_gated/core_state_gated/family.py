"""Sprig: a llama, some of whose layers have gated linear attention. `mixers` says which, a word a layer."""

import msgspec

from core.api.errors import UserError
from core_runtime.models.families import Family, decoder_spec
from core_runtime.models.spec import BlockSpec
from core_state_gated.layer import gated_linear

ROW = Family(name="sprig", model_types=("sprig",), architectures=("SprigForCausalLM",))


class Sprig:
    """The model family's contract."""

    def decoder_spec(self, hf_config):
        """A llama's blocks, and others in their place."""
        spec = decoder_spec(hf_config, ROW)
        mixers = hf_config.get("mixers") or []
        if len(mixers) != len(spec.blocks):
            raise UserError(f"mixers is {mixers!r}; expected 'linear' or 'full' for each of {len(spec.blocks)} layers.")
        state = gated_linear(hf_config["linear_heads"], hf_config["linear_key"], hf_config["linear_value"])
        blocks = zip(spec.blocks, mixers, strict=True)
        return msgspec.structs.replace(
            spec, blocks=tuple(BlockSpec(state) if mixer == "linear" else block for block, mixer in blocks)
        )

    def canonical_name(self, name):
        """Only the new layers have names of their own."""
        return name.replace(".gated.", ".mixer.")
