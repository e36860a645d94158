"""States that are rounded by chance: right on average, one of both neighbours, and the same in any cut and company."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3NextConfig

from core import LLM, SamplingParams
from core_attention.torch_sdpa.backend import TorchSDPA
from core_attention.torch_sdpa.states.chance import noise, rounded_by_chance
from core_config.resolve import resolve
from core_kit.checks.states import StateRun
from core_runtime.sampling.philox import philox4x32
from tests.kernels.test_native_states import LAYERS, LENGTHS
from tests.tiny_models import save_model

HALF = torch.float16
VALUES = torch.tensor([0.1, -0.1, 1.0003, 3.1e-6, -4.1e-8, 1e-9, 1234.56, 65503.0, -2.0, 0.0, 70000.0, -1e9, 6.0e-5])


def test_a_number_becomes_one_of_its_neighbours_and_is_right_on_average() -> None:
    rows = 20_000
    rounded = rounded_by_chance(VALUES.expand(rows, -1), HALF, torch.arange(rows))
    assert torch.equal(rounded, rounded.to(HALF).float())
    for index, value in enumerate(VALUES.numpy()):
        inside = np.float32(np.clip(value, -65504.0, 65504.0))
        near = np.float16(inside)
        toward = np.float16(-np.inf if near > inside else np.inf)
        other = near if near == inside else np.nextafter(near, toward)
        found = set(rounded[:, index].tolist())
        assert found <= {float(near), float(other)}
        gap = abs(float(other) - float(near))
        mean = float(rounded[:, index].double().mean())
        assert abs(mean - float(inside)) <= 4 * gap * 0.5 / rows**0.5
        assert len(found) == 2 or gap == 0.0 or abs(float(near) - float(inside)) < gap / 1000


def test_what_is_no_number_stays() -> None:
    assert rounded_by_chance(torch.tensor([[float("nan")]]), HALF, torch.zeros(1, dtype=torch.int64)).isnan().all()


def test_noise_is_philox_of_position_and_place_alone() -> None:
    positions = torch.tensor([7, 3, 90000])
    together = noise(positions, 11)
    assert together.shape == (3, 11) and float(together.min()) >= 0.0 and float(together.max()) < 1.0
    for row, position in enumerate(positions):
        assert torch.equal(noise(position[None], 11)[0], together[row])
        assert torch.equal(noise(position[None], 5)[0], together[row, :5])
    counter = np.array([[2], [90000], [0], [0]], dtype=np.uint64)
    key = np.array([[0x5A17E5], [0xC4A2CE]], dtype=np.uint64)
    words = philox4x32(counter, key)[0, :3] >> np.uint32(8)
    assert together[2, 8:11].tolist() == (words.astype(np.float32) / 2**24).tolist()


@pytest.fixture(scope="module")
def tiny_states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of gated delta rules, with full attention in every other layer."""
    torch.manual_seed(0)
    config = Qwen3NextConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        max_position_embeddings=256,
    )
    return save_model(tmp_path_factory.mktemp("tiny_states"), config)


@pytest.mark.parametrize("layer", LAYERS)
def test_cuts_and_company_change_no_bit(layer: str) -> None:
    spec = LAYERS[layer]

    def run(dtype: str, chunk: int | None = None) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(4)
        sequences = [torch.randn(length, spec.input_size, generator=random) for length in LENGTHS]
        states = StateRun(TorchSDPA(), spec, sequences, random, dtype=dtype)
        return states.all() if chunk is None else states.all(chunk)

    whole = run("float32+float16:chance")
    for chunk in (1, 7):
        for got, expected in zip(run("float32+float16:chance", chunk), whole, strict=True):
            assert torch.equal(got, expected)
    nearest, exact = run("float32+float16"), run("float32")
    if spec.state_size > spec.window_size:
        assert not all(torch.equal(got, other) for got, other in zip(whole, nearest, strict=True))
    for got, expected in zip(whole, exact, strict=True):
        torch.testing.assert_close(got, expected, atol=6e-2, rtol=3e-2)


def test_an_engine_chooses_what_rounds_by_chance_and_its_numerics_tell(tiny_states: Path) -> None:
    given = {"model": str(tiny_states), "max_model_len": 64, "num_gpu_blocks_override": 128, "dtype": "float32"}
    given |= {"mamba_ssm_cache_dtype": "float16", "enable_mamba_cache_stochastic_rounding": True}
    done = resolve(given, context="llm", environ={})
    assert done.engine.plugins.attention["state"] == "torch_sdpa"
    assert done.numerics is not None and done.numerics.endswith("+states:float32+float16:chance")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (21, 3, 9)]

    def told(prompts: list, **settings: object) -> list:
        with LLM(**given, **settings) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return [[(t, e.logprob) for step in o.outputs[0].logprobs for t, e in step.items()] for o in outputs]

    together = told(prompts)
    assert together == told(prompts, max_num_batched_tokens=8, enable_prefix_caching=False)
    assert together[0] == told(prompts[:1])[0]
