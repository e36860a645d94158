"""DeepSeek models from real checkpoints, through the whole engine: against transformers, and the same bits whatever
happens around a request."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core import LLM, SamplingParams
from core.api.errors import CoreError
from core.api.specs import LatentSpec
from core_config.resolve import resolve
from core_runtime.executor.worker import Worker
from core_runtime.layers.rotary import inverse_frequencies
from core_runtime.models.families import decoder_spec
from tests.models.published import PUBLISHED
from tests.tiny_models import save_checkpoint

LITE = PUBLISHED["DeepSeek-V2-Lite"]

PROMPTS = [list(range(5, 52)), [9, 9, 8, 7] * 5, [200]]
ROOM = {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 4}
MODELS = {
    "v2": ("deepseek_v2", {}),
    "v2_dense": ("deepseek_v2", {"first_k_dense_replace": 3, "q_lora_rank": 24}),
    "v3": ("deepseek_v3", {}),
    "v3_dense": ("deepseek_v3", {"first_k_dense_replace": 3, "q_lora_rank": None}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("latent")
    return {name: save_checkpoint(folder / name, family, **changes) for name, (family, changes) in MODELS.items()}


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Path]) -> dict[str, list]:
    """Of each model: each prompt's log-probabilities and eight greedy tokens, by transformers."""
    found: dict[str, list] = {}
    for name, path in checkpoints.items():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        model.generation_config.eos_token_id = None
        for ids in PROMPTS:
            with torch.inference_mode():
                scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)[:-1]
                whole = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0]
            own = scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            found.setdefault(name, []).append((own, whole[len(ids) :].tolist()))
    return found


def answers(path: Path, **settings: object) -> list[tuple[torch.Tensor, list[int]]]:
    """The log-probabilities of each prompt's tokens after the first, and eight greedy tokens."""
    asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=1)
    with LLM(model=str(path), use_tqdm_on_load=False, **{**ROOM, **settings}) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], asked, use_tqdm=False)
    found = []
    for ids, output in zip(PROMPTS, outputs, strict=True):
        entries = zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        own = torch.tensor([at[token].logprob for token, at in entries])
        found.append((own, output.outputs[0].token_ids))
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk, block_size", [(128, 16), (7, 1)])
def test_text_and_scores_equal_transformers(checkpoints, expected, name, chunk, block_size) -> None:
    got = answers(checkpoints[name], dtype="float32", max_num_batched_tokens=chunk, block_size=block_size)
    for (scores, tokens), (wanted, greedy) in zip(got, expected[name], strict=True):
        torch.testing.assert_close(scores, wanted, atol=1e-3, rtol=0)
        assert tokens == greedy


@pytest.mark.parametrize("numerics", ["fast", "reference"])
def test_without_native_kernels(checkpoints, expected, numerics) -> None:
    """Plain torch: all heads in one product, or row by row."""
    settings = {"dtype": "float32", "numerics": numerics, "plugins": "no:cpu_native"}
    for (scores, tokens), (wanted, greedy) in zip(answers(checkpoints["v3"], **settings), expected["v3"], strict=True):
        torch.testing.assert_close(scores, wanted, atol=1e-3, rtol=0)
        assert tokens == greedy


@pytest.mark.parametrize(
    "settings, nearest",
    [
        ({"dtype": "bfloat16"}, 0.3),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, 0.1),
        ({"dtype": "float32", "kv_cache_dtype": "fp8_per_token_head"}, 0.6),
        ({"dtype": "float32", "kv_cache_dtype": "int8_per_token_head"}, 0.1),
        ({"dtype": "float32", "quantization": "int8"}, 0.3),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_fewer_bits_stay_near(checkpoints, expected, settings, nearest) -> None:
    """Narrow types of run, cache and weights; the absorbed matrix of a quantized model is unpacked."""
    got = answers(checkpoints["v3_dense"], **settings)
    apart = torch.cat([scores - wanted for (scores, _), (wanted, _) in zip(got, expected["v3_dense"], strict=True)])
    assert 0 < apart.abs().mean() < nearest


WAYS = {
    "chunks of 5": {"max_num_batched_tokens": 5},
    "blocks of 1": {"block_size": 1},
    "preempted": {"num_gpu_blocks_override": 12, "rounds": 2},
    "cached prefixes": {"rounds": 2},
    "blocks from host memory": {"num_gpu_blocks_override": 12, "kv_offloading_size": 0.01, "rounds": 3},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    "planned ahead": {"async_scheduling": True, "rounds": 2},
    "not recorded": {"enforce_eager": True},
}


def sampled(path: Path, numerics: str, alone: bool = False, rounds: int = 1, **settings: object) -> list:
    asked = [
        SamplingParams(temperature=0.8, seed=n, max_tokens=30, ignore_eos=True, logprobs=2) for n in range(len(PROMPTS))
    ]
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    with LLM(model=str(path), use_tqdm_on_load=False, numerics=numerics, **{**ROOM, **settings}) as llm:
        for _ in range(rounds):
            if alone:
                outputs = [llm.generate(*one, use_tqdm=False)[0] for one in zip(prompts, asked, strict=True)]
            else:
                outputs = llm.generate(prompts, asked, use_tqdm=False)
    choices = [output.outputs[0] for output in outputs]
    return [(c.token_ids, [{t: p.logprob for t, p in at.items()} for at in c.logprobs]) for c in choices]


@pytest.fixture(scope="module", params=["fast", "reference"])
def numerics(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def plainest(checkpoints: dict[str, Path], numerics: str) -> list:
    return sampled(checkpoints["v3"], numerics, alone=True, enable_prefix_caching=False)


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_equal(checkpoints, numerics, plainest, way) -> None:
    assert sampled(checkpoints["v3"], numerics, **WAYS[way]) == plainest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_step_is_recorded(checkpoints, dtype) -> None:
    """Latent layers, a dense MLP, the router, its experts and the shared one."""
    planned = resolve({"model": str(checkpoints["v3"]), "dtype": dtype, **ROOM}, context="llm", environ={})
    worker = Worker(planned.engine)
    model = worker.runner.forward.model
    assert (model.capturable, model.capture) == (True, "any")
    worker.close()


def test_nothing_waives_the_promise_by_default(checkpoints) -> None:
    planned = resolve({"model": str(checkpoints["v2"]), **ROOM}, context="llm", environ={})
    assert planned.waivers == []


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_planned(checkpoints, quantization, dtype) -> None:
    """Weights, absorbed halves included, and the cache: one latent and one key a token, whatever the heads."""
    given = {"model": str(checkpoints["v3"]), "dtype": dtype, "quantization": quantization, **ROOM}
    planned = resolve(given, context="llm", environ={})
    worker = Worker(planned.engine)
    plan, spec = planned.memory, decoder_spec(planned.engine.model.hf_config)
    assert worker.weights_nbytes == plan.weights
    assert worker.kv_nbytes == plan.kv
    (mixer, *_) = {block.mixer for block in spec.blocks}
    assert isinstance(mixer, LatentSpec)
    items = 3 * (mixer.rank + mixer.rope_size)
    assert plan.kv_per_token == items * {"float32": 4, "bfloat16": 2}[dtype]
    held = worker.runner.forward.model.workspace.nbytes
    worker.close()
    assert plan.workspace == held


def test_a_cache_that_the_named_backend_has_not_for_latents_is_refused(checkpoints) -> None:
    sentence = (
        r"cpu_paged.*refuses: kv_cache_dtype: needs a type without scales .* latent layers, got int8_per_token_head"
    )
    with pytest.raises(CoreError, match=sentence):
        LLM(model=str(checkpoints["v2"]), attention_backend="cpu_paged", kv_cache_dtype="int8_per_token_head")


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; rotary embeddings need an even size"),
        ({"n_group": 4}, "n_group is 4.*6 experts"),
        ({"num_experts_per_tok": 5}, "topk_group 2.*no 5 experts"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor has 0 numbers"),
    ],
)
def test_impossible_configurations_are_sentences(checkpoints, changes, sentence) -> None:
    with pytest.raises(CoreError, match=sentence):
        LLM(model=str(checkpoints["v3"]), hf_overrides=changes)


def test_the_older_spelling_means_the_same() -> None:
    """Oracle: the modules that transformers builds from it."""
    with torch.device("meta"):
        config = AutoConfig.for_model(**LITE)
        reference = AutoModelForCausalLM.from_config(config)
    spec = decoder_spec(LITE)
    block, layer = spec.blocks[-1], reference.model.layers[-1]
    assert block.mixer.scale == pytest.approx(layer.self_attn.scaling, rel=1e-12)
    assert block.rope.attention_factor == pytest.approx(reference.model.rotary_emb.attention_scaling)
    shapes = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items() if ".experts." not in name}
    mine = {name: shape for name, shape in spec.tensor_shapes().items() if ".experts." not in name}
    assert mine == shapes
    assert spec.blocks[0].experts is None and block.experts.count == 64
    assert sum(math.prod(shape) for shape in spec.tensor_shapes().values()) == sum(
        tensor.numel() for tensor in reference.state_dict().values()
    )


def test_rotary_angles_of_the_published_configuration() -> None:
    rope = decoder_spec(LITE).blocks[0].rope
    config = AutoConfig.for_model(**LITE)
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    assert factor == pytest.approx(rope.attention_factor)
    torch.testing.assert_close(inverse_frequencies(rope, 64).float(), expected, rtol=1e-5, atol=0)
