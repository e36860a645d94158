"""The contract of the prefix cache on models of every kind of layer: the next turn computes its new tokens and one block.

Answers and log-probabilities are those of an engine without a cache. The same holds after a restart, a kill and other weights
with the pages on a disk, and after a sleep with the pages there or, at level 1, in host memory.
"""

import multiprocessing

import pytest
from transformers import AutoModelForCausalLM, Mamba2Config, Qwen3NextConfig

from tests.kv.next_turn import BLOCK, ask, open_engine, save_in_idle_time, wait_to_be_killed
from tests.tiny_models import SHAPE, save_checkpoint


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


FAMILIES = ("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next", "mamba2")
SAMPLE = [name if name == "qwen3_next" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


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
@pytest.mark.parametrize("family", SAMPLE)
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
@pytest.mark.parametrize("family", FAMILIES)
def test_pages_on_a_disk_are_found_again_when_their_weight_version_returns(family, tmp_path):
    path, other = checkpoint(family, tmp_path / "model"), checkpoint(family, tmp_path / "other")
    with open_engine(path, kv_offloading_disk_path=str(tmp_path / "pages")) as llm:
        llm.update_weights(path=str(path), weight_version="first")
        prompt = [5 + place % 200 for place in range(61)]
        answer, _, _ = ask(llm, prompt)
        save_in_idle_time(llm)
        llm.update_weights(path=str(other), weight_version="second")
        _, _, num_cached = ask(llm, prompt)
        assert num_cached == 0
        llm.update_weights(path=str(path), weight_version="first")
        _, _, num_cached = ask(llm, [*prompt, *answer, 9])
        assert len(prompt) + len(answer) - num_cached <= BLOCK


@pytest.mark.parametrize("family", SAMPLE)
def test_a_turn_after_the_engine_was_killed_computes_its_new_tokens_and_one_block(family, tmp_path):
    path, pages = checkpoint(family, tmp_path / "model"), str(tmp_path / "pages")
    prompt = [5 + place % 200 for place in range(61)]
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=wait_to_be_killed, args=(path, pages, prompt, there))
    process.start()
    there.close()
    history = prompt + here.recv()
    process.kill()
    process.join()
    turn = [*history, 9, 8, 7]
    with open_engine(path, kv_offloading_disk_path=pages) as llm:
        answer, _, num_cached = ask(llm, turn)
        assert len(history) - num_cached <= BLOCK
    with open_engine(path, enable_prefix_caching=False) as plain:
        assert answer == ask(plain, turn)[0]
