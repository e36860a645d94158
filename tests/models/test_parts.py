"""Parts of a model, whose partial sums are added up, against the whole: heads, inner sizes, experts, vocabulary, blocks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MixtralConfig,
    Olmo2Config,
    Qwen3MoeConfig,
)

from core.api.errors import UserError
from core.api.specs import LayerSpec, PartPlan
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.models.families import decoder_spec, family_for
from core_runtime.specs.model_part import Part
from core_runtime.weights.formats import IntGroups
from tests.models.harness import Harness
from tests.models.test_decoder import checkpoint_tensors

SHAPE = {
    "vocab_size": 200, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256,
}  # fmt: skip
LATENT = {
    **{key: value for key, value in SHAPE.items() if key not in ("num_key_value_heads", "head_dim")},
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 28,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama_bias": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "gemma3": Gemma3TextConfig(
        **SHAPE,
        sliding_window=9,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
    "qwen3_moe": Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, mlp_only_layers=[1]
    ),
    "deepseek_queries": DeepseekV3Config(**LATENT, q_lora_rank=None, attention_bias=True),
    "deepseek_latent_queries": DeepseekV3Config(**LATENT, q_lora_rank=24),
}
IDS = torch.randint(0, 200, (21,), generator=torch.Generator().manual_seed(1)).tolist()
SEQUENCES = [(IDS, 0, list(range(1, 8)))]
TIME_LIMIT_S = 60


class Sum:
    """Adds up a tensor of each of `size` threads, in the order of their ranks."""

    def __init__(self, size: int) -> None:
        self.tensors: list[torch.Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=TIME_LIMIT_S)

    def of_rank(self, rank: int):
        def reduce(tensor: torch.Tensor) -> None:
            self.tensors[rank] = tensor
            self.barrier.wait()
            total = torch.stack(self.tensors).sum(0)
            self.barrier.wait()
            tensor.copy_(total)

        return reduce


def checkpoint(name: str) -> tuple[dict, dict[str, torch.Tensor]]:
    torch.manual_seed(7)
    config = CONFIGS[name]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    hf_config = config.to_dict()
    return hf_config, checkpoint_tensors(dict(model.state_dict()), family_for(hf_config).expert_names)


def in_parts(hf_config: dict, state: dict[str, torch.Tensor], size: int, **settings) -> list[Harness]:
    total = Sum(size)
    return [Harness(hf_config, state, part=Part(r, size), reduce=total.of_rank(r), **settings) for r in range(size)]


def run_together(parts: list[Harness]) -> torch.Tensor:
    """All logits: each rank's, side by side."""
    with ThreadPoolExecutor(len(parts)) as threads:
        running = [threads.submit(part.run, SEQUENCES) for part in parts]
        return torch.cat([one.result(TIME_LIMIT_S) for one in running], dim=1)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_add_up_to_the_whole(name: str, size: int) -> None:
    hf_config, state = checkpoint(name)
    whole = Harness(hf_config, state)
    expected = whole.run(SEQUENCES)
    parts = in_parts(hf_config, state, size)
    logits = run_together(parts)
    scale = expected.abs().max()
    assert (logits - expected).abs().max() < 1e-4 * scale
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    assert sum(part.weights.nbytes for part in parts) < 1.5 * whole.weights.nbytes


def test_what_is_not_summed_has_the_bits_of_the_whole() -> None:
    hf_config, state = checkpoint("llama_bias")
    native = [NativeKernels(1)]  # their bits depend on the inputs of a product alone
    whole = Harness(hf_config, state, kernels=native)
    whole.run(SEQUENCES)
    rows = len(IDS)
    residual = whole.model.workspace.buffer("residual")[:rows]
    x = torch.randn(rows, SHAPE["hidden_size"])
    embedded, heads, logits = [], [], []
    for rank in range(2):
        partial: list[torch.Tensor] = []
        part = Harness(hf_config, state, part=Part(rank, 2), reduce=partial.append, kernels=native)
        part.run(SEQUENCES)
        part.model.workspace.buffer("residual")[:rows] = residual
        logits.append(part.model.logits(torch.arange(rows)).clone())
        part.model.embed(torch.tensor(IDS), torch.arange(rows))
        embedded.append(partial[-1])
        heads.append(qkv_of(part, x))
    table = torch.empty_like(x)
    whole.weights.embedding.tokens.rows(torch.tensor(IDS), table)
    assert torch.equal(embedded[0] + embedded[1], table)
    assert torch.equal(torch.cat(logits, dim=1), whole.model.logits(torch.arange(rows)))
    for halves, expected in zip(zip(*heads, strict=True), qkv_of(whole, x), strict=True):
        assert torch.equal(torch.cat(halves, dim=1), expected)


def qkv_of(harness: Harness, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of the first block."""
    spec = harness.spec.blocks[0].mixer
    widths = [heads * spec.head_size for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)]
    out = torch.empty(len(x), sum(widths))
    harness.weights.blocks[0].mixers[0].qkv(x, out)
    return out.split(widths, dim=1)


class InGroups:
    """Every matrix in 8-bit integers with a scale for 16 inputs."""

    def plan(self, part: LayerSpec) -> PartPlan:
        n, k = part.shape
        return PartPlan((f"{part.name}.weight",), "int8_groups", "none", "groups", n * k + n * k // 8)

    def pack(self, part: LayerSpec, tensors: dict[str, torch.Tensor]) -> IntGroups:
        n, k = part.shape
        groups = tensors[f"{part.name}.weight"].view(n, k // 16, 16)
        scale = (groups.abs().amax(-1) / 127).clamp(min=1e-8)
        values = (groups / scale.unsqueeze(-1)).round().clamp(-127, 127) + 128
        return IntGroups(8, 16, values.to(torch.uint8).view(n, k), scale, None, 128)


def test_packed_weights_are_cut_in_whole_groups() -> None:
    hf_config, state = checkpoint("llama")
    wider = {**hf_config, "intermediate_size": 96}
    for layer in range(3):
        mlp = f"model.layers.{layer}.mlp"
        state |= {f"{mlp}.{side}_proj.weight": torch.randn(96, 48) * 0.1 for side in ("gate", "up")}
        state[f"{mlp}.down_proj.weight"] = torch.randn(48, 96) * 0.1
    whole = Harness(wider, state, method=InGroups())
    expected = whole.run(SEQUENCES)
    logits = run_together(in_parts(wider, state, 2, method=InGroups()))
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    assert not torch.equal(expected, Harness(wider, state).run(SEQUENCES))
    with pytest.raises(UserError, match=r"layers.0.self_attn.o_proj cannot be divided into 4 parts: .* whole groups"):
        Harness(wider, state, part=Part(0, 4), reduce=lambda tensor: None, method=InGroups())


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_queries"])
def test_stages_one_after_the_other_have_the_bits_of_the_whole(name: str) -> None:
    hf_config, state = checkpoint(name)
    whole = Harness(hf_config, state)
    first = Harness(hf_config, state, part=Part(blocks=(0, 1)))
    last = Harness(hf_config, state, part=Part(blocks=(1, 3)))
    first.run(SEQUENCES)
    residual = first.model.workspace.buffer("residual")
    last.model.workspace.buffer("residual")[: len(IDS)] = residual[: len(IDS)]
    assert torch.equal(last.run(SEQUENCES), whole.run(SEQUENCES))
    twice = whole.weights.embedding.tokens.nbytes if first.spec.tied else 0
    assert first.weights.nbytes + last.weights.nbytes == whole.weights.nbytes + twice


@pytest.mark.parametrize(
    ("name", "size", "what"),
    [
        ("llama", 3, "8 attention heads"),
        ("llama", 16, "8 attention heads"),
        ("mixtral", 8, "4 experts"),
        ("deepseek_queries", 16, "8 attention heads"),
    ],
)
def test_what_does_not_divide_is_a_sentence(name: str, size: int, what: str) -> None:
    spec = decoder_spec(CONFIGS[name].to_dict())
    with pytest.raises(UserError, match=what):
        spec.local(Part(0, size))
    with pytest.raises(UserError, match=f"rank {size} of {size}"):
        spec.local(Part(size, size))
    with pytest.raises(UserError, match="blocks 2 to 9"):
        spec.local(Part(blocks=(2, 9)))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            MambaConfig(hidden_size=32, num_hidden_layers=1),
            r"a layer with a state \(mamba1\) sums over all its channels",
        ),
        (
            Mamba2Config(hidden_size=64, num_heads=8, head_dim=16, n_groups=1, num_hidden_layers=1),
            "normalizes its output in 1 groups",
        ),
        (Olmo2Config(**SHAPE), "its queries and keys are normalized over all heads; use one part"),
        (LlamaConfig(**{**SHAPE, "vocab_size": 3}), "3 tokens of a vocabulary cannot be divided into 4 parts"),
        (LlamaConfig(**{**SHAPE, "num_attention_heads": 6}), "numbers of parts that divide them: 1, 2, 3, 6"),
    ],
)
def test_what_a_rank_cannot_compute_alone_is_a_sentence(config, what: str) -> None:
    with pytest.raises(UserError, match=what):
        decoder_spec(config.to_dict()).local(Part(0, 4))
