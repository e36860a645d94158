"""Models of transformers on the engine's attention, cache and matrices, against transformers' own forward passes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from models.module_harness import ModuleHarness
from safetensors.torch import load_file

from core.api.errors import CheckpointError, UserError
from core_runtime.models.fallback.shape import shaped_model
from core_runtime.models.families import UnknownArchitecture, family_for
from core_runtime.models.unread import unknown_to_class
from tests.families.harness import Harness, Piece

SHAPE = {
    "hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 131,
}  # fmt: skip
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 128}
GROUPED = {**SHAPE, **SPECIAL, "num_key_value_heads": 2, "head_dim": 12}
ATTENTION = {name: value for name, value in GROUPED.items() if name != "intermediate_size"}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
FOUR = {**EXPERTS, "num_experts": 4}
BY_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 131}

OUTSIDE: dict[str, dict[str, Any]] = {
    "beam": {**GROUPED, **WINDOWS, **FOUR, "n_group": 2, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"]},
    "ctrl": {"n_embd": 48, "dff": 88, "n_layer": 2, "n_head": 4, "vocab_size": 131, "n_positions": 128},
    "diffllama": GROUPED,
    "flint": {**GROUPED, **WINDOWS, **FOUR, "shared_expert_intermediate_size": 20, "mlp_only_layers": [0]},
    "hrm_text": {**SHAPE, **SPECIAL, "head_dim": 12, "num_hidden_layers": 1, "prefix_lm": False},
    "kolibri1": {**ATTENTION, **WINDOWS, **FOUR, "shared_expert_intermediate_size": 20},
    "modernbert-decoder": {**SHAPE, **SPECIAL, "layer_types": WINDOWS["layer_types"], "local_attention": 10},
    "moshi": {**ATTENTION, "ffn_dim": 88, "sliding_window": 5},
}
"""Small configurations of models that no row serves; some with windows, sinks, soft caps, experts, tied heads, scaled
embeddings, embeddings of layers, shared keys, two calls a layer."""

FORCED: dict[str, dict[str, Any]] = {
    "dots1": {
        **GROUPED,
        **EXPERTS,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
    },
    "gemma3n_text": {
        **GROUPED,
        **BY_LAYER,
        "num_hidden_layers": 3,
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 5,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0],
    },
    "granite_swa": {**GROUPED, **WINDOWS, "residual_multiplier": 0.7, "logits_scaling": 3.0},
    "vaultgemma": {**GROUPED, **WINDOWS, "query_pre_attn_scalar": 10, "final_logit_softcapping": 5.0},
}
"""The same of models that a row serves too."""


def make(model_type: str, values: dict[str, Any]) -> Any:
    """A model of random weights, none of which is at its initial value."""
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=source)
            if parameter.ndim == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model.float().eval()


def saved(model: Any, directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Configuration and tensors of the checkpoint that transformers writes."""
    model.save_pretrained(directory)
    config = transformers.AutoConfig.from_pretrained(directory).to_dict()
    return config, load_file(directory / "model.safetensors")


def tokens(count: int, seed: int) -> list[int]:
    """Some tokens."""
    source = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(3, 131, (count,), generator=source).tolist()
    return drawn


def expected(model: Any, ids: list[int]) -> torch.Tensor:
    """Transformers' logits of a whole prompt."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("model_type", sorted(OUTSIDE))
def test_logits_and_tokens_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    model = make(model_type, OUTSIDE[model_type])
    config, state = saved(model, tmp_path)
    with pytest.raises(UnknownArchitecture):
        family_for(config)
    saved_in_vain = ["sliding_window"] if model_type == "modernbert-decoder" else []  # it is half of `local_attention`
    assert unknown_to_class(config) == saved_in_vain
    engine = ModuleHarness(config, state)
    first, second = tokens(20, 2), tokens(13, 3)
    blocks, others = list(range(1, 12)), list(range(12, 18))

    begin = engine.run([(first[:7], 0, blocks), (second[:3], 0, others)])
    middle = engine.run([(first[7:8], 7, blocks), (second[3:], 3, others)])
    rest = engine.run([(first[8:], 8, blocks)])
    torch.testing.assert_close(torch.cat([begin[:7], middle[:1], rest]), expected(model, first), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([begin[7:], middle[1:]]), expected(model, second), atol=1e-4, rtol=0)

    longer = list(first)
    logits = rest
    for _ in range(16):
        longer.append(int(logits[-1].argmax()))
        logits = engine.run([(longer[-1:], len(longer) - 1, blocks)])
    greedy = expected(model, longer)[len(first) - 1 : -1].argmax(-1).tolist()
    assert longer[len(first) :] == greedy


@pytest.mark.parametrize("model_type", sorted(FORCED))
def test_logits_are_those_of_the_row(model_type: str, tmp_path: Path) -> None:
    config, state = saved(make(model_type, FORCED[model_type]), tmp_path)
    own = Harness(tmp_path)
    engine = ModuleHarness(config, state)
    ids, blocks = tokens(20, 2), list(range(1, 7))
    for begin, end in ((0, 7), (7, 8), (8, 20)):
        new = ids[begin:end]
        expected_logits = own.logits([Piece(0, new, begin)])
        torch.testing.assert_close(engine.run([(new, begin, blocks)]), expected_logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "values", "reason"),
    [
        ("doge", {**GROUPED, "keep_window_size": 8}, "mask of its own"),
        (
            "minimax_m3_vl_text",
            {**GROUPED, "layer_types": ["minimax_m3_sparse", "full_attention"], "index_n_heads": 2},
            "'block_indices', which is not known",
        ),
        ("lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"]}, "carry a state"),
        ("mamba", {"hidden_size": 48, "num_hidden_layers": 1, "vocab_size": 131}, "carry a state"),
        ("bert", {**SHAPE, "num_hidden_layers": 1}, "not causal"),
        ("nonsense", {}, "cannot build a model of type 'nonsense'"),
        ("nonsense", {"auto_map": {"AutoConfig": "code.Config"}}, "--trust-remote-code allows"),
    ],
)
def test_what_paged_attention_cannot_honour_is_refused(model_type: str, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        shaped_model({"model_type": model_type, **values}, [], torch.float32, None)


def test_a_model_that_attends_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written here, since the models of transformers that do so become fewer: in 5.24 CodeGen is none any more."""
    from transformers.models.diffllama import modeling_diffllama

    def by_itself(self: Any, hidden_states: torch.Tensor, *given: Any, **named: Any) -> tuple[torch.Tensor, None]:
        query, key = self.q_proj(hidden_states), self.k_proj(hidden_states)
        key = key.repeat_interleave(query.shape[-1] // key.shape[-1], -1)
        return (query @ key.mT).tril() @ query, None

    monkeypatch.setattr(modeling_diffllama.DiffLlamaAttention, "forward", by_itself)
    with pytest.raises(UserError, match="only 0 of its 1 layers go through"):
        shaped_model({"model_type": "diffllama", **GROUPED, "num_hidden_layers": 1}, [], torch.float32, None)


def test_tokens_that_see_each_other_outside_attention_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.diffllama import modeling_diffllama

    config, state = saved(make("diffllama", GROUPED), tmp_path)
    plain = modeling_diffllama.DiffLlamaMLP.forward
    monkeypatch.setattr(modeling_diffllama.DiffLlamaMLP, "forward", lambda self, x: plain(self, x) + x.roll(1, dims=1))
    with pytest.raises(UserError, match="depend on other tokens outside attention"):
        ModuleHarness(config, state)


def test_every_tensor_has_a_place_and_every_place_a_tensor(tmp_path: Path) -> None:
    config, state = saved(make("diffllama", GROUPED), tmp_path)
    with pytest.raises(CheckpointError, match=r"has a tensor 'model.layers.0.mlp.gate.weight'"):
        ModuleHarness(config, {**state, "model.layers.0.mlp.gate.weight": torch.zeros(2, 2)})
    missing = {name: tensor for name, tensor in state.items() if "layers.1.mlp.up_proj" not in name}
    with pytest.raises(CheckpointError, match=r"no tensor 'model.layers.1.mlp.up_proj.weight'"):
        ModuleHarness(config, missing)
    wide = {**state, "model.norm.weight": torch.zeros(49)}
    with pytest.raises(CheckpointError, match="do not belong together"):
        ModuleHarness(config, wide)
