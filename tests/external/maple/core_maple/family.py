"""Maple fuses queries, keys and values by key head, and gate and up; it scales embeddings, branches and logits."""

from core_runtime.models.families import Family
from core_runtime.models.weight_rules import Ignored, Rename, modules
from core_runtime.specs.block_spec import HeadsSpec


class Maple:
    """The contract `HasRow`."""

    row = Family(
        name="maple",
        model_types=("maple",),
        architectures=("MapleLMHeadModel",),
        keys={"hidden_size": "width", "num_hidden_layers": "depth", "intermediate_size": "ff_width"},
        scalars={"embed": "embed_gain", "residual": "branch_gain", "logits": "1/logit_divisor"},
        heads=HeadsSpec(fused="groups"),
        fused_gate_up=True,
        weights=(
            Ignored(r"trunk\.step_counter", "of training"),
            Rename(r"^trunk\.", "model."),
            *modules(("twigs", "layers"), ("words", "embed_tokens"), ("top_norm", "norm"), ("attn", "self_attn")),
            *modules(("query_key_value", "qkv_proj"), ("out", "o_proj"), ("ff.both", "mlp.gate_up_proj")),
            *modules(("ff.down", "mlp.down_proj"), ("norm_a", "input_layernorm")),
            *modules(("norm_b", "post_attention_layernorm")),
        ),
    )
