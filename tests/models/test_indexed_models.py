"""Latent attention with an index, through the whole engine: transformers' tokens where the index chooses among keys, and the
same bits whatever happens around a request."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core.api.errors import CoreError
from core.api.specs import LatentSpec
from core_attention.cpu_paged.limits import GATHERED_BYTES
from core_config.resolve import resolve
from core_runtime.executor.worker import Worker
from core_runtime.models.families import decoder_spec
from core_runtime.specs.chosen_keys import gathered_bytes
from core_runtime.specs.model_part import Part
from tests.inside import worker_of
from tests.tiny_models import INDEXED, save_checkpoint
from tests.ways import ROOM, WAYS, opened, sampled

UNLIKE = [list(range(5, 52)), list(range(250, 230, -1)), [200]]
"""Prompts for transformers, whose choice among equal scores is any: keys of repeated tokens can have equal scores."""
KINDS = ("deepseek_v32", "glm_moe_dsa", "axk2")
TOKENS = 32


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("indexed")
    return {kind: save_checkpoint(folder / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def expected(checkpoints: dict[str, Path]) -> dict[str, list]:
    """Of each model: each prompt's log-probabilities and greedy tokens, by transformers."""
    found: dict[str, list] = {}
    for kind, path in checkpoints.items():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        model.generation_config.eos_token_id = None
        for ids in UNLIKE:
            with torch.inference_mode():
                scores = model(torch.tensor([ids])).logits[0].log_softmax(-1)[:-1]
                whole = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0]
            own = scores.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            found.setdefault(kind, []).append((own, whole[len(ids) :].tolist()))
    return found


def answers(llm: LLM) -> list[tuple[torch.Tensor, list[int]]]:
    """The log-probabilities of each prompt's tokens after the first, and greedy tokens."""
    asked = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, prompt_logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in UNLIKE], asked, use_tqdm=False)
    found = []
    for ids, output in zip(UNLIKE, outputs, strict=True):
        entries = zip(ids[1:], output.prompt_logprobs[1:], strict=True)
        own = torch.tensor([at[token].logprob for token, at in entries])
        found.append((own, output.outputs[0].token_ids))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 128},
        {"max_num_batched_tokens": 7, "block_size": 1},
        {"numerics": "reference", "plugins": "no:cpu_native"},
    ],
    ids=["whole", "in chunks", "without native kernels"],
)
def test_text_and_scores_equal_transformers(checkpoints, expected, kind, settings) -> None:
    with opened(checkpoints[kind], **settings) as llm:
        got = answers(llm)
    for (scores, tokens), (wanted, greedy) in zip(got, expected[kind], strict=True):
        torch.testing.assert_close(scores, wanted, atol=1e-4 * float(max(wanted.abs(), default=1)), rtol=0)
        assert tokens == greedy


def test_the_index_matters(checkpoints, expected) -> None:
    """Read whole, the same weights have another text: what the other tests compare is not attention without an index."""
    with opened(checkpoints["deepseek_v32"], hf_overrides={"index_topk": 128, "max_position_embeddings": 128}) as llm:
        assert [tokens for _, tokens in answers(llm)][:2] != [tokens for _, tokens in expected["deepseek_v32"]][:2]


@pytest.fixture(scope="module", params=["fast", "reference"])
def numerics(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def plainest(checkpoints: dict[str, Path], numerics: str) -> list:
    return sampled(checkpoints["glm_moe_dsa"], numerics=numerics, alone=True, enable_prefix_caching=False)


@pytest.mark.parametrize("way", WAYS)
def test_bits_are_equal(checkpoints, numerics, plainest, way) -> None:
    assert sampled(checkpoints["glm_moe_dsa"], numerics=numerics, **WAYS[way]) == plainest


TREE = {"num_speculative_tokens": 4, "speculative_token_tree": "[(0,),(1,),(0,0),(0,1)]"}


def test_a_tree_of_drafts_changes_no_bit(checkpoints, plainest, numerics) -> None:
    """Drafts of the model itself: each reads the keys of its own branch, and accepted ones take theirs along."""
    path = checkpoints["glm_moe_dsa"]
    drafts = {"method": "draft_model", "model": str(path), "adaptive": False, **TREE}
    assert sampled(path, numerics=numerics, speculative_config=drafts) == plainest


def test_gates_depend_on_no_neighbour(checkpoints) -> None:
    """Those of norms and of heads, in A.X K2."""
    path = checkpoints["axk2"]
    plain = sampled(path, alone=True, enable_prefix_caching=False)
    for way in ("chunks of 5", "preempted"):
        assert sampled(path, **WAYS[way]) == plain


LAYOUTS = [("glm_moe_dsa", "tensor"), ("glm_moe_dsa", "pipeline"), ("axk2", "tensor")]


@pytest.mark.parametrize("kind, layout", LAYOUTS)
def test_two_processes_have_the_bits_of_one(checkpoints, kind, layout) -> None:
    path = checkpoints[kind]
    assert sampled(path, **{f"{layout}_parallel_size": 2}) == sampled(path, alone=True, max_num_batched_tokens=9)


def test_keys_are_not_divided_by_positions(checkpoints) -> None:
    given = {"model": str(checkpoints["deepseek_v32"]), **ROOM, "tensor_parallel_size": 2}
    with pytest.raises(CoreError, match="decode-context-parallel-size 2: layers of the model choose keys by an index"):
        resolve({**given, "decode_context_parallel_size": 2}, context="llm", environ={})


def test_drafts_of_the_models_own_layer_change_no_bit(tmp_path) -> None:
    """The layer that drafts has an index, and keys of it in the cache, of its own."""
    path = save_checkpoint(tmp_path / "model", "deepseek_v32", num_hidden_layers=4)
    config = json.loads((path / "config.json").read_text())
    size = config["hidden_size"]
    config |= {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}
    config |= {kinds: config[kinds][:3] for kinds in ("layer_types", "mlp_layer_types") if config.get(kinds)}
    (path / "config.json").write_text(json.dumps(config))
    tensors = load_file(path / "model.safetensors")
    tensors |= {f"model.layers.3.{name}.weight": torch.ones(size) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors["model.layers.3.eh_proj.weight"] = 0.1 * torch.randn(size, 2 * size)
    save_file(tensors, path / "model.safetensors")
    plain = sampled(path, alone=True)
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    for settings in ({}, {"num_gpu_blocks_override": 14, "rounds": 2}, {"max_num_batched_tokens": 9}):
        assert sampled(path, speculative_config=drafts, **settings) == plain


@pytest.mark.parametrize("kind, keys", [("deepseek_v32", 3), ("glm_moe_dsa", 2)])
@pytest.mark.parametrize("dtype, item", [("float32", 4), ("bfloat16", 2), ("fp8", 1)])
def test_memory_is_planned(checkpoints, kind, keys, dtype, item) -> None:
    """Keys of the index in the layers that have one, of 16 bits where the cache has 8; and the buffer of chosen positions."""
    given = {"model": str(checkpoints[kind]), **ROOM, "kv_cache_dtype": dtype}
    planned = resolve(given, context="llm", environ={})
    worker = Worker(planned.engine)
    plan, spec = planned.memory, decoder_spec(planned.engine.model.hf_config)
    assert worker.kv_nbytes == plan.kv
    assert worker.weights_nbytes == plan.weights
    latents = [mixer for mixer in spec.mixers if isinstance(mixer, LatentSpec)]
    (sizes,) = {mixer.rank + mixer.rope_size for mixer in latents}
    assert plan.kv_per_token == len(spec.mixers) * sizes * item + keys * INDEXED["index_head_dim"] * max(item, 2)
    held = worker.runner.forward.model.workspace.nbytes
    worker.close()
    room = max(gathered_bytes(mixer, item, plan.limits.tokens, GATHERED_BYTES) for mixer in latents)
    assert plan.workspace == held + room and 0 < room <= GATHERED_BYTES


def test_room_for_chosen_keys_is_what_was_planned(checkpoints) -> None:
    """It grows to that of the largest step, here of half of the prompt."""
    given = {**ROOM, "max_num_batched_tokens": 32, "enable_return_routed_experts": True}
    planned = resolve({"model": str(checkpoints["deepseek_v32"]), **given}, context="llm", environ={}).memory
    with opened(checkpoints["deepseek_v32"], **given) as llm:
        llm.generate([{"prompt_token_ids": list(range(5, 69))}], SamplingParams(max_tokens=1), use_tqdm=False)
        model = worker_of(llm).runner.forward.model
        assert planned.workspace == model.workspace.nbytes + model.mixers[0].backend.gathered_nbytes


def test_a_backend_that_reads_every_key_is_refused_with_a_way_out(checkpoints) -> None:
    sentence = r"triton.*sparse: needs layers without an index, got the best 12 keys.*max_position_embeddings 12"
    with pytest.raises(CoreError, match=sentence):
        resolve(
            {"model": str(checkpoints["deepseek_v32"]), **ROOM, "attention_backend": "triton"},
            context="llm",
            environ={},
        )


@pytest.mark.parametrize(
    "kind, changes, sentence",
    [
        ("deepseek_v32", {"index_topk": 0}, "index_topk is 0"),
        ("deepseek_v32", {"index_n_heads": -1}, "index_n_heads is -1"),
        ("deepseek_v32", {"index_head_dim": 6}, "index_head_dim is 6.*at least qk_rope_head_dim, 8"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank is None.*the index reads the latent of queries"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 4}, "there is no earlier choice to reuse"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "for each of 4 layers"),
        ("glm_moe_dsa", {"indexer_types": ["full", "half", "full", "full"]}, "`full` or `shared`"),
    ],
)
def test_impossible_configurations_are_sentences(checkpoints, kind, changes, sentence) -> None:
    with pytest.raises(CoreError, match=sentence):
        resolve({"model": str(checkpoints[kind]), **ROOM, "hf_overrides": changes}, context="llm", environ={})


def test_an_index_without_keys_is_refused_by_the_names_of_its_tensors(checkpoints, tmp_path: Path) -> None:
    shutil.copytree(checkpoints["deepseek_v32"], tmp_path / "copy")
    (file,) = (tmp_path / "copy").glob("*.safetensors")
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if ".indexer.wk." not in name}
    assert len(kept) < len(tensors)
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(CoreError, match=r"indexer\.wk"), opened(tmp_path / "copy"):
        pass


def test_a_stage_does_not_begin_with_a_reused_choice(checkpoints) -> None:
    planned = resolve({"model": str(checkpoints["glm_moe_dsa"]), **ROOM}, context="llm", environ={})
    spec = decoder_spec(planned.engine.model.hf_config)
    assert len(spec.local(Part(0, 1, blocks=(2, 4))).blocks) == 2
    with pytest.raises(CoreError, match="reads the keys that the index of an earlier block chooses"):
        spec.local(Part(0, 1, blocks=(1, 4)))
