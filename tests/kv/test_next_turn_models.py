"""The contract of the prefix cache on models of every kind of layer: the next turn computes its new tokens and one block.

Answers and log-probabilities are those of an engine without a cache. The same holds after a restart with the pages on a disk,
and after a sleep with the pages on a disk or, at level 1, in host memory.
"""

import pytest
from transformers import AutoModelForCausalLM, Mamba2Config, Qwen3NextConfig

from core import LLM, SamplingParams
from tests.inside import core_of
from tests.kv.connector_rows import tiers_of
from tests.tiny_models import SHAPE, save_checkpoint

BLOCK = 16
TOKENS = SamplingParams(max_tokens=37, temperature=0.0, logprobs=2, ignore_eos=True)


def checkpoint(family, directory):
    if family == "qwen3_next":
        sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                 "linear_value_head_dim": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
                 "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "decoder_sparse_step": 1}  # fmt: skip
        kinds = ["linear_attention", "full_attention", "linear_attention"]
        config = Qwen3NextConfig(**{**SHAPE, "layer_types": kinds}, **sizes)
    elif family == "mamba2":
        sizes = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2, "chunk_size": 8}
        config = Mamba2Config(hidden_size=64, num_hidden_layers=2, vocab_size=260, eos_token_id=2, bos_token_id=1,
                              pad_token_id=0, **sizes)  # fmt: skip
    else:
        return save_checkpoint(directory, family=family)
    path = save_checkpoint(directory)
    (path / "model.safetensors").unlink()
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def open_engine(path, **options):
    return LLM(
        model=str(path), max_model_len=512, max_num_seqs=4, block_size=BLOCK, kv_cache_memory_bytes="64M", **options
    )


def ask(llm, tokens):
    """The answer, its log-probabilities, and the number of cached tokens of the prompt."""
    (answer,) = llm.generate([{"prompt_token_ids": tokens}], TOKENS)
    (choice,) = answer.outputs
    numbers = [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs]
    return list(choice.token_ids), numbers, answer.num_cached_tokens


FAMILIES = ("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_turn_computes_its_new_tokens_and_one_block(family, tmp_path):
    path = checkpoint(family, tmp_path / "model")
    stored = {"kv_offloading_disk_path": str(tmp_path / "pages"), "kv_offloading_size": 0.1}
    chunks = {"max_num_batched_tokens": 64}
    history, turns = [], []
    llm = open_engine(path, **stored, **chunks)
    for turn in range(6):
        prompt = history + [5 + (7 * turn + place) % 200 for place in range(11 + 9 * turn)]
        answer, numbers, num_cached = ask(llm, prompt)
        assert len(history) - num_cached <= BLOCK, f"turn {turn}"
        turns.append((prompt, answer, numbers))
        history = prompt + answer
        if turn == 3:
            llm.close()
            llm = open_engine(path, **stored, **chunks)
    llm.close()
    plain = open_engine(path, enable_prefix_caching=False)
    for prompt, answer, numbers in turns:
        wanted, expected, _ = ask(plain, prompt)
        assert answer == wanted
        for row, other in zip(numbers, expected, strict=True):
            assert row == pytest.approx(other, abs=1e-5)
    plain.close()


@pytest.mark.parametrize(
    ("level", "place"),
    [
        (1, "kv_offloading_size"),
        pytest.param(1, "kv_offloading_disk_path", marks=pytest.mark.slow),
        (2, "kv_offloading_disk_path"),
    ],
)
@pytest.mark.parametrize(
    "family",
    [name if name in ("llama", "qwen3_next") else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_a_turn_after_a_sleep_computes_its_new_tokens_and_one_block(family, level, place, tmp_path):
    path = checkpoint(family, tmp_path / "model")
    stored = {place: 0.1 if place == "kv_offloading_size" else str(tmp_path / "pages")}
    with open_engine(path, enable_sleep_mode=True, **stored) as llm:
        prompt = [5 + place % 200 for place in range(61)]
        answer, _, _ = ask(llm, prompt)
        history = prompt + answer
        llm.sleep(level)
        llm.wake_up()
        turn = [*history, 9, 8, 7]
        answer, numbers, num_cached = ask(llm, turn)
        assert len(history) - num_cached <= BLOCK
    with open_engine(path, enable_prefix_caching=False) as plain:
        wanted, expected, _ = ask(plain, turn)
    assert answer == wanted
    for row, other in zip(numbers, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
def test_pages_on_a_disk_are_found_again_when_their_weight_version_returns(tmp_path):
    path, other = save_checkpoint(tmp_path / "model"), save_checkpoint(tmp_path / "other", seed=11)
    with open_engine(path, kv_offloading_disk_path=str(tmp_path / "pages")) as llm:
        llm.update_weights(path=str(path), weight_version="first")
        prompt = [5 + place % 200 for place in range(61)]
        answer, _, _ = ask(llm, prompt)
        core = core_of(llm)
        while core.idle() is not None:  # until the disk has everything
            tiers_of(core.kv_services).disk.flush()
        llm.update_weights(path=str(other), weight_version="second")
        _, _, num_cached = ask(llm, prompt)
        assert num_cached == 0
        llm.update_weights(path=str(path), weight_version="first")
        _, _, num_cached = ask(llm, [*prompt, *answer, 9])
        assert len(prompt) + len(answer) - num_cached <= BLOCK
