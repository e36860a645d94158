"""EAGLE's drafts and the layers for multi-token prediction, from their published layouts, against plain torch in float32."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from core.api.errors import CheckpointError, UserError
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.contracts import Kernels
from core_runtime.specs.draft_spec import BEHIND_NORM, DraftSpec
from core_speculative.eagle.layout import eagle_spec
from core_speculative.eagle3.layout import eagle3_spec
from tests.speculative.draft_harness import DraftHarness, context_of, target_harness
from tests.speculative.oracles import Drafter, Eagle, Eagle3

SHAPE = {
    "vocab_size": 199, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
TARGET = LlamaConfig(**SHAPE, num_hidden_layers=6)
DRAFT = LlamaConfig(**SHAPE, num_hidden_layers=1, draft_vocab_size=120)
TOKENS = [7, 100, 3, 55, 2, 9, 8, 77, 40, 41, 42, 150, 11]
CHUNKS = (5, 7, 1)
COUNT = 4


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(TARGET, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.add_(1)
    return model


def hidden_states(target: Any) -> tuple[Tensor, ...]:
    """What enters each layer, and the last one normed, for all tokens but the newest: [T - 1, H] each."""
    with torch.no_grad():
        out = target(torch.tensor([TOKENS[:-1]]), output_hidden_states=True)
    return tuple(state[0] for state in out.hidden_states)


def embedding_and_head(target: Any) -> tuple[Tensor, Tensor]:
    return target.model.embed_tokens.weight.detach(), target.lm_head.weight.detach()


def without_buffers(oracle: Drafter) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in oracle.state_dict().items() if not name.startswith("rotary")}


def ours(
    target: Any,
    draft: DraftSpec,
    hf_config: dict[str, Any],
    state: dict[str, Tensor],
    kernels: tuple[Kernels, ...] = (),
) -> tuple[list[int], Tensor]:
    """The drafts of the decoder that the core runs."""
    whole = target_harness(TARGET.to_dict(), target.state_dict(), draft.taps, kernels)
    return DraftHarness(whole, draft, hf_config, state, kernels).drafts(TOKENS, COUNT, CHUNKS)


def check(found: tuple[list[int], Tensor], expected: tuple[list[int], Tensor]) -> None:
    tokens, logits = found
    wanted, oracle = expected
    assert tokens == wanted
    torch.testing.assert_close(logits, oracle, atol=2e-4, rtol=2e-4)


EAGLE_LAYOUTS = {"authors": {}, "speculators": {"fc.": "fusion_fc.", "layers.0.": "transformer."}}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", EAGLE_LAYOUTS)
def test_eagle(target: Any, layout: str, bias: bool, native: bool) -> None:
    torch.manual_seed(1)
    embedding, head = embedding_and_head(target)
    oracle = Eagle(DRAFT, embedding, head, bias=bias).eval()
    state = {"embed_tokens.weight": embedding.clone()}
    for name, tensor in without_buffers(oracle).items():
        for usual, own in EAGLE_LAYOUTS[layout].items():
            name = name.replace(usual, own)
        state[name] = tensor
    hf_config = DRAFT.to_dict()
    if layout == "speculators":
        hf_config = {"speculators_model_type": "eagle", "fusion_bias": bias, "transformer_layer_config": hf_config}
    draft = eagle_spec(context_of(TARGET.to_dict(), hf_config, state))
    assert draft.shares_embedding and draft.shares_head and draft.taps == (BEHIND_NORM,)
    kernels = (NativeKernels(1),) if native else ()
    found = ours(target, draft, hf_config, state, kernels)
    check(found, oracle.drafts(TOKENS, hidden_states(target)[-1], COUNT))


def eagle3_state(oracle: Eagle3, layout: str) -> dict[str, Tensor]:
    state = without_buffers(oracle)
    state["d2t"] = oracle.d2t
    state["t2d"] = torch.zeros(SHAPE["vocab_size"], dtype=torch.bool)
    if layout == "speculators":
        state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
    return state


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("authors", {}),
        ("authors", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}}),
        ("speculators", {"norm_before_residual": True}),
    ],
)
def test_eagle3(target: Any, layout: str, said: dict[str, Any], native: bool) -> None:
    torch.manual_seed(2)
    embedding, _ = embedding_and_head(target)
    oracle = Eagle3(DRAFT, embedding, 3, norms_stream=layout == "speculators").eval()
    state = eagle3_state(oracle, layout)
    hf_config = {**DRAFT.to_dict(), **said, "architectures": ["LlamaForCausalLMEagle3"]}
    if layout == "speculators":
        inner = {key: value for key, value in DRAFT.to_dict().items() if key != "draft_vocab_size"}
        hf_config = {
            "speculators_model_type": "eagle3",
            "draft_vocab_size": 120,
            "transformer_layer_config": inner,
            **said,
        }
    draft = eagle3_spec(context_of(TARGET.to_dict(), hf_config, state))
    kernels = (NativeKernels(1),) if native else ()
    found = ours(target, draft, hf_config, state, kernels)
    ids = said.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids", [2, 3, 3])
    states = hidden_states(target)
    with torch.no_grad():
        taken = oracle.fc(torch.cat([residual_before(target, states, one) for one in ids], -1))
    check(found, oracle.drafts(TOKENS, taken, COUNT))
    seen = {int(token) for token in found[0]}
    assert seen <= set((torch.arange(120) + oracle.d2t).tolist()), "drafts are tokens of the target"


def residual_before(target: Any, states: tuple[Tensor, ...], layer: int) -> Tensor:
    """What enters a layer; behind the last one, transformers shows what its norm gives."""
    if layer < len(target.model.layers):
        return states[layer]
    found: list[Tensor] = []

    def keep(module: Any, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0][0])

    handle = target.model.norm.register_forward_pre_hook(keep)
    with torch.no_grad():
        target(torch.tensor([TOKENS[:-1]]))
    handle.remove()
    return found[0]


def test_taps_norms_and_a_normed_hidden_state(target: Any) -> None:
    """norm_before_fc, and norm_output: what goes from draft to draft is behind the last norm."""
    torch.manual_seed(3)
    embedding, _ = embedding_and_head(target)
    oracle = Eagle3(DRAFT, embedding, 3, norms_stream=False).eval()
    oracle.carried = lambda stream: oracle.norm(stream)  # nothing that its state dict has
    state = eagle3_state(oracle, "authors")
    weight = 1 + 0.3 * torch.randn(3 * 48)
    state["input_norm.weight"] = weight
    hf_config = {**DRAFT.to_dict(), "norm_before_fc": True, "norm_output": True}
    draft = eagle3_spec(context_of(TARGET.to_dict(), hf_config, state))
    states = hidden_states(target)
    taps = torch.cat([states[2], states[3], states[3]], -1)
    normed = taps * torch.rsqrt(taps.square().mean(-1, keepdim=True) + 1e-5) * weight
    with torch.no_grad():
        taken = oracle.fc(normed)
    check(ours(target, draft, hf_config, state), oracle.drafts(TOKENS, taken, COUNT))


def test_a_target_without_a_draft_has_no_taps(target: Any) -> None:
    harness = target_harness(TARGET.to_dict(), target.state_dict(), ())
    with pytest.raises(KeyError):
        harness.model.workspace.buffer("taps")


def eagle3_context(target: Any, said: dict[str, Any]) -> Any:
    oracle = Eagle3(DRAFT, embedding_and_head(target)[0], 3, norms_stream=False)
    return context_of(TARGET.to_dict(), {**DRAFT.to_dict(), **said}, eagle3_state(oracle, "authors"))


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"target_hidden_size": 64}, "hidden states of 64 numbers, the model's have 48"),
        ({"vocab_size": 200}, "knows 200 tokens, the model 199"),
        ({"draft_vocab_size": 500}, "draft_vocab_size is 500; expected 1 to 199"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 9]}, "from 1 to 6"),
        ({"eagle_aux_hidden_state_layer_ids": "middle"}, "from 1 to 6"),
    ],
)
def test_a_draft_of_another_model_is_refused_by_name(target: Any, said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        eagle3_spec(eagle3_context(target, said))


def test_a_map_of_tokens_that_leaves_the_vocabulary_is_refused(target: Any) -> None:
    oracle = Eagle3(DRAFT, embedding_and_head(target)[0], 3, norms_stream=False)
    state = eagle3_state(oracle, "authors")
    state["d2t"] = torch.full((120,), 190)
    draft = eagle3_spec(context_of(TARGET.to_dict(), DRAFT.to_dict(), state))
    with pytest.raises(CheckpointError, match="vocabulary of 199"):
        ours(target, draft, DRAFT.to_dict(), state)
