"""Adapters that replace norms and change the embedding, through all that changes an engine: sleep, new weights, deaths of one
of two engines, pages on disk, sessions and receipts.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core_frontend.group.inproc import OfflineGroup
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.engines import bits_of, engine, tokens_of
from tests.adapters.made import save_adapter
from tests.receipts import checking
from tests.tiny_models import save_checkpoint

NORMS = ["input_layernorm", "post_attention_layernorm", "norm"]
CHANGES: dict[str, dict[str, Any]] = {
    "norms": {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": NORMS},
    "more norms": {"target_modules": ["down_proj"], "modules_to_save": NORMS[1:], "use_dora": True},
}
PROMPTS = [[1, *range(40, 75)], [1, 9, 99, 100, 9, 99, 100, 9, 99]]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=3)
GIVEN: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "block_size": 4, "enable_lora": True, "max_loras": 2,
    "max_cpu_loras": 2, "use_tqdm_on_load": False, "kv_cache_memory_bytes": 1 << 21, "logprobs_mode": "raw_logits",
}  # fmt: skip
Bits = list[tuple[list[int], list[dict[int, float]]]]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("newer"), seed=11)


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [save_adapter(tiny_llama, folder / name, seed, **more) for seed, (name, more) in enumerate(CHANGES.items())]


def named(adapters: list[Path]) -> list[LoRARequest | None]:
    return [*(LoRARequest(path.name, seed + 1, str(path)) for seed, path in enumerate(adapters)), None]


def wanted_of(adapters: list[Path]) -> list[tuple[list[int], LoRARequest | None]]:
    return [(prompt, adapter) for prompt in PROMPTS for adapter in named(adapters)]


def answers(llm: LLM, adapters: list[Path]) -> Bits:
    prompts, requests = zip(*wanted_of(adapters), strict=True)
    return [bits_of(one) for one in llm.generate(list(prompts), ASKED, lora_request=list(requests), use_tqdm=False)]


def fresh(model: Path, adapters: list[Path]) -> Bits:
    """Those of an engine in which each request is alone."""
    with engine(model, {}) as made:
        made.load(*adapters)
        wanted = [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters, None)]
        return [bits_of(made.run([one], ASKED)[0]) for one in wanted]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path, newer: Path, adapters: list[Path]) -> Iterator[dict[Path, Bits]]:
    found = {model: fresh(model, adapters) for model in (tiny_llama, newer)}
    assert len({str(bits) for each in found.values() for bits in each}) == 2 * len(PROMPTS) * (len(adapters) + 1)
    yield found


def test_after_sleep_and_new_weights(
    tiny_llama: Path, newer: Path, adapters: list[Path], expected: dict[Path, Bits]
) -> None:
    with LLM(str(tiny_llama), enable_sleep_mode=True, **GIVEN) as llm:
        assert answers(llm, adapters) == expected[tiny_llama]
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            assert answers(llm, adapters) == expected[tiny_llama]
        for model in (newer, tiny_llama):
            llm.update_weights(path=str(model))
            assert answers(llm, adapters) == expected[model]


def test_two_engines_of_which_one_dies(
    tiny_llama: Path, newer: Path, adapters: list[Path], expected: dict[Path, Bits]
) -> None:
    with LLM(str(tiny_llama), data_parallel_size=2, enable_sleep_mode=True, **GIVEN) as llm:
        assert answers(llm, adapters) == expected[tiny_llama]
        assert _tokens_with_a_death(llm, adapters) == [tokens for tokens, _ in expected[tiny_llama]]
        assert answers(llm, adapters) == expected[tiny_llama]
        llm.sleep(level=2)
        llm.wake_up()
        assert answers(llm, adapters) == expected[tiny_llama]
        llm.update_weights(path=str(newer))
        assert answers(llm, adapters) == expected[newer]


def _tokens_with_a_death(llm: LLM, adapters: list[Path]) -> list[list[int]]:
    """The tokens of all requests when an engine that has some of them is killed; it is there again at the end."""
    client = llm._client
    assert isinstance(client, OfflineGroup)
    for number, (prompt, adapter) in enumerate(wanted_of(adapters)):
        llm.add_request(str(number), {"prompt_token_ids": prompt}, ASKED, lora_request=adapter)
    victim = next(member for member in client._group.members if client._group._work.at(member.index))
    os.kill(victim.client.pid, signal.SIGKILL)
    last: dict[int, list[int]] = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            last[int(output.request_id)] = tokens_of(output)
    while victim.state != "running":
        client._run(asyncio.sleep(0.05))
    return [last[number] for number in sorted(last)]


def test_pages_on_disk(tiny_llama: Path, adapters: list[Path], expected: dict[Path, Bits], tmp_path: Path) -> None:
    disk = {"kv_offloading_disk_path": str(tmp_path / "kv"), "kv_offloading_disk_size": 0.01}
    for turn in range(2):
        with LLM(str(tiny_llama), **GIVEN, **disk) as llm:
            assert answers(llm, adapters) == expected[tiny_llama]
            assert (llm.stats().tier_hits > 0) == bool(turn), "the next engine finds the pages of each adapter"


def test_turns_of_sessions(tiny_llama: Path, adapters: list[Path]) -> None:
    """Each turn has the bits of its tokens with its adapter, also where turns change it."""
    own, other, _ = named(adapters)
    params = SamplingParams(max_tokens=8, temperature=0.7, seed=5, ignore_eos=True, logprobs=2)
    found = []
    with LLM(str(tiny_llama), **GIVEN) as llm:
        session = llm.session()
        text = "Once"
        for adapter in (own, own, None, other, own):
            output = session.generate(text, params, lora_request=adapter)
            found.append((list(output.prompt_token_ids or []), adapter, bits_of(output)))
            text += output.outputs[0].text + " and"
    with LLM(str(tiny_llama), enable_prefix_caching=False, **GIVEN) as llm:
        for prompt, adapter, bits in found:
            [alone] = llm.generate([prompt], params, lora_request=adapter, use_tqdm=False)
            assert bits_of(alone) == bits


def test_receipts_name_the_adapter_and_are_verified(tiny_llama: Path, adapters: list[Path]) -> None:
    words = [
        "--model",
        str(tiny_llama),
        "--max-model-len",
        "256",
        "--enable-lora",
        "--max-loras",
        "2",
        "--lora-modules",
    ]
    words += [f"{path.name.replace(' ', '-')}={path}" for path in adapters]
    body = {"prompt": "the fox", "max_tokens": 12, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    verdicts = {}

    async def work(made: Any) -> None:
        for name in ("norms", "more-norms"):
            asked = {**body, "model": name}
            answer = await checking.ask(made, checking.TEXT, asked)
            receipts = checking.receipts_of(answer)
            assert receipts[0][0].adapter
            verdicts[name] = await checking.verdict(made, checking.TEXT, asked, receipts, answer)
            verdicts[f"{name}, asked of the base"] = await checking.verdict(made, checking.TEXT, body, receipts)

    checking.run_on_engine(words, work)
    assert [verdicts[name].code for name in ("norms", "more-norms")] == [0, 0]
    others = [verdict for name, verdict in verdicts.items() if name.endswith("base")]
    assert [(verdict.code, verdict.sentence[:8]) for verdict in others] == [(1, "adapter:")] * 2
