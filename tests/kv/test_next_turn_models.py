"""The contract of the prefix cache after a sleep, a kill, and other weights, on models of every kind of layer.

The next turn computes its new tokens and one block, and answers are those of an engine without a cache; `test_contract.py`
has the rest.
"""

import multiprocessing

import pytest

from tests.kv.conversations import FAMILIES, checkpoint
from tests.kv.next_turn import BLOCK, ask, open_engine, save_in_idle_time, wait_to_be_killed

SAMPLE = [name if name == "qwen3_next" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]


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
