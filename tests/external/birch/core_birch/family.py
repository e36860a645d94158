"""Birch names its sizes and its tensors in its own way."""

import re

from core_runtime.models.families import Family, decoder_spec

ROW = Family(name="birch", model_types=("birch",), architectures=("BirchLMHeadModel",))
SIZES = {
    "n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_inner": "intermediate_size",
    "n_head": "num_attention_heads", "n_head_kv": "num_key_value_heads", "n_words": "vocab_size",
    "n_positions": "max_position_embeddings",
}  # fmt: skip
PARTS = {
    "attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj", "ff.gate": "mlp.gate_proj", "ff.up": "mlp.up_proj", "ff.down": "mlp.down_proj",
    "norm_1": "input_layernorm", "norm_2": "post_attention_layernorm",
}  # fmt: skip
OUTSIDE = {"wte": "model.embed_tokens", "norm_f": "model.norm", "lm_head": "lm_head"}


class Birch:
    """The model family's contract."""

    def decoder_spec(self, hf_config):
        """The usual sizes under the usual names; everything else stays."""
        usual = {SIZES.get(name, name): value for name, value in hf_config.items()}
        return decoder_spec(usual, ROW)

    def canonical_name(self, name):
        """`h.3.attn.query.weight` is `model.layers.3.self_attn.q_proj.weight`."""
        found = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", name)
        if found and found[2] in PARTS:
            return f"model.layers.{found[1]}.{PARTS[found[2]]}.{found[3]}"
        part, _, kind = name.rpartition(".")
        return f"{OUTSIDE[part]}.{kind}" if part in OUTSIDE else name
