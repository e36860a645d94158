"""EAGLE's drafts of Llama 4, DeepSeek, MiniCPM and Mistral Large 3 as their makers publish them, and in plain torch around
transformers' own blocks: the last layer of a model drafts for the model without it.

Owns: the layouts, the tensors of targets and drafts, and their oracles. Never does: compare. Called by: the tests of such
drafts, alone and in the engine.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, GraniteConfig, Llama4TextConfig, PretrainedConfig

from tests.speculative.mtp_cases import (
    EXPERTS,
    LATENT,
    LATENT_SHAPE,
    LAYERS,
    SHAPE,
    Case,
    longer_model,
    resized,
    target_of,
    tensors_of,
)
from tests.speculative.oracles import NextToken, run_block

DENSE = {
    **LATENT_SHAPE,
    **EXPERTS,
    **LATENT,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
WIDTH, DEPTH, EMBED = 4.0, 1.4, 6.0
CHUNK = 8


@dataclass(frozen=True)
class Layout:
    """One of them. config: of a model with one layer more, which is the block that drafts.

    of_embedding, of_hidden: names of the norms before the projection; empty: there are none.
    said: keys that the draft's configuration has beside, or with other values.
    prefix: what names of modules begin with.
    layers: name of the list of blocks.
    """

    config: PretrainedConfig
    of_embedding: str = ""
    of_hidden: str = ""
    said: tuple[tuple[str, Any], ...] = ()
    prefix: str = ""
    layers: str = "layers"


LLAMA4 = Llama4TextConfig(
    **{**SHAPE, "intermediate_size": 40},
    intermediate_size_mlp=56,
    head_dim=8,
    moe_layers=[],
    interleave_moe_layer_step=0,
    no_rope_layers=[1, 0, 1],
    layer_types=["chunked_attention", "full_attention", "chunked_attention"],
    attention_chunk_size=CHUNK,
    num_local_experts=2,
)
GRANITE = GraniteConfig(
    **SHAPE,
    rms_norm_eps=1e-2,
    embedding_multiplier=EMBED,
    residual_multiplier=DEPTH / LAYERS**0.5,
    logits_scaling=WIDTH,
    attention_multiplier=8**-0.5,
)
MINICPM = {
    "model_type": "minicpm", "architectures": ["MiniCPMForCausalLM"], "scale_emb": EMBED, "scale_depth": DEPTH,
    "dim_model_base": SHAPE["hidden_size"] / WIDTH,
}  # fmt: skip
LAYOUTS = {
    "llama4": Layout(LLAMA4, said=(("no_rope_layers", [1]), ("layer_types", ["chunked_attention"]))),
    "deepseek": Layout(DeepseekV3Config(**DENSE, first_k_dense_replace=1), "enorm", "hnorm"),
    "mistral_large_3": Layout(
        DeepseekV3Config(**DENSE, first_k_dense_replace=LAYERS + 1), said=(("first_k_dense_replace", 1),)
    ),
    "minicpm": Layout(
        GRANITE,
        "input_norm1",
        "input_norm2",
        said=(("mup_denominator", LAYERS), *MINICPM.items()),
        prefix="model.",
        layers="eagle_layers",
    ),
}


class OfMiniCPM(NextToken):
    """States are divided by the width relative to a small model's; there is no norm before the head."""

    def out_of(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return super().out_of(EMBED * embedded, hidden)

    def logits(self, stream: Tensor) -> Tensor:
        return self.head @ (stream / WIDTH)

    def carried(self, stream: Tensor) -> Tensor:
        return stream / WIDTH


def oracle_of(name: str, model: Any) -> NextToken:
    """The last layer of the model as a draft."""
    layout = LAYOUTS[name]
    torch.manual_seed(1)
    kind = OfMiniCPM if name == "minicpm" else NextToken
    block = model.model.layers[LAYERS]
    oracle = kind(
        SHAPE["hidden_size"],
        layout.config.rms_norm_eps,
        lambda x: run_block(block, model.model.rotary_emb, x, chunk=CHUNK if name == "llama4" else None),
        model.model.embed_tokens.weight.detach(),
        model.lm_head.weight.detach(),
    ).eval()
    if not layout.of_embedding:
        oracle.of_embedding = oracle.of_hidden = nn.Identity()
    return oracle


def draft_state(name: str, model: Any, oracle: NextToken, folder: Path) -> dict[str, Tensor]:
    """The tensors of the draft's checkpoint."""
    layout = LAYOUTS[name]
    state = {"fc.weight": oracle.project.weight.detach(), "norm.weight": oracle.last.weight.detach()}
    if layout.of_embedding:
        state[f"{layout.of_embedding}.weight"] = oracle.of_embedding.weight.detach()
        state[f"{layout.of_hidden}.weight"] = oracle.of_hidden.weight.detach()
    own = f"model.layers.{LAYERS}."
    for key, tensor in tensors_of(model, folder).items():
        if key.startswith(own):
            state[key.replace(own, f"{layout.layers}.0.")] = tensor
    state["embed_tokens.weight"] = oracle.embedding.clone()
    return {f"{layout.prefix}{key}": tensor for key, tensor in state.items()}


@dataclass(frozen=True)
class MadeEagle:
    """Configuration and tensors of a target and of a draft, the target of transformers, and the draft in plain torch.

    width: what hidden states of the target are divided by before the draft reads them.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    draft_config: dict[str, Any]
    draft_state: dict[str, Tensor]
    target: Any
    oracle: NextToken
    width: float


def made_eagle(name: str, folder: Path, **sizes: int) -> MadeEagle:
    """One of the layouts. folder: to be written to. sizes: values of the configuration other than its own."""
    layout = LAYOUTS[name]
    model = longer_model(Case(resized(layout.config, **sizes), {}))
    oracle = oracle_of(name, model)
    target = target_of(model)
    config = target.config.to_dict()
    for kinds in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if config.get(kinds):
            config[kinds] = config[kinds][:LAYERS]
    if name == "minicpm":
        scalars = ("embedding", "residual", "attention")
        left = {f"{scalar}_multiplier" for scalar in scalars} | {"logits_scaling"}
        config = {key: value for key, value in config.items() if key not in left} | MINICPM
    state = {key: tensor for key, tensor in tensors_of(model, folder).items() if f"layers.{LAYERS}." not in key}
    draft = draft_state(name, model, oracle, folder)
    said = {**config, "num_hidden_layers": 1, **dict(layout.said)}
    return MadeEagle(config, state, said, draft, target, oracle, WIDTH if name == "minicpm" else 1.0)
