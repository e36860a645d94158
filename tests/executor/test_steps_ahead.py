"""Steps go to a device before the results of those before them are known, whoever comes, ends or is preempted meanwhile."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from core import LLM, SamplingParams
from core_runtime.executor.steps.token_table import TokenTable
from tests.executor.test_doubles import TORCH, double
from tests.executor.test_gpu_steps import calls_of, watched
from tests.inside import core_of, worker_of

ROOM = {"max_model_len": 64, "block_size": 8, "dtype": "float32", "num_gpu_blocks_override": 64}
NARROW = {"max_num_seqs": 3, "max_num_batched_tokens": 12}
"""Fewer seats than requests, and prompts in chunks: somebody comes, or ends, or is in its prompt, in most steps."""

PROMPTS = [f"{index} the quick brown fox jumps"[: 4 + 5 * index] for index in range(8)]
SAMPLED = [
    SamplingParams(temperature=0.9, seed=index, max_tokens=5 + 3 * (index % 4), ignore_eos=True) for index in range(8)
]


def answers(llm: LLM, params: list[SamplingParams]) -> list:
    with watched(llm):
        outputs = llm.generate(PROMPTS[: len(params)], params, use_tqdm=False)
    return [(list(out.outputs[0].token_ids), out.outputs[0].text, out.outputs[0].finish_reason) for out in outputs]


def expected(checkpoint: Path, params: list[SamplingParams], **settings: object) -> list:
    with LLM(model=str(checkpoint), **(ROOM | NARROW | settings), **TORCH) as llm:
        return answers(llm, params)


@contextlib.contextmanager
def counted(llm: LLM) -> Iterator[Counter]:
    """How often a step was submitted while another was in flight, what the steps were, and which of them waited for it."""
    executor = core_of(llm).executor
    ahead = executor.worker.ahead
    submit = executor.submit
    found: Counter = Counter()

    def counting(plan):
        num_before, num_reads = len(ahead.in_flight), calls_of(llm).reads.total()
        ticket = submit(plan)
        if num_before and plan.total_num_tokens:
            found["behind another"] += 1
            found["waited"] += len(ahead.in_flight) <= num_before
            found["read"] += calls_of(llm).reads.total() > num_reads
            found["new"] += bool(plan.new)
            found["left"] += bool(plan.removed)
            found["chunk beside decodes"] += bool(plan.query_lens.max(initial=0) > 1) and len(plan.slots) > 1
        return ticket

    executor.submit = counting
    yield found
    executor.submit = submit


def test_whoever_comes_or_ends_the_device_is_not_waited_for(tiny_llama: Path) -> None:
    with LLM(model=str(tiny_llama), **ROOM, **NARROW, **double("gpu")) as llm, counted(llm) as found:
        assert answers(llm, SAMPLED) == expected(tiny_llama, SAMPLED)
    assert found["behind another"] > 25 and found["waited"] == 0 and found["read"] == 0, found
    assert min(found["new"], found["left"], found["chunk beside decodes"]) >= 4, found


def test_answers_that_end_by_a_stop_string_or_token_end_as_on_the_cpu(tiny_llama: Path) -> None:
    """The device has computed a token more by then, which nobody sees, and its seat is soon another's."""
    plain = expected(tiny_llama, SAMPLED)
    params = []
    for (token_ids, text, _), asked in zip(plain, SAMPLED, strict=True):
        stop = {"stop": text[1:3]} if asked.seed % 2 else {"stop_token_ids": [token_ids[2]]}
        params.append(SamplingParams(temperature=0.9, seed=asked.seed, max_tokens=20, ignore_eos=True, **stop))
    wanted = expected(tiny_llama, params)
    assert [reason for _, _, reason in wanted].count("stop") == len(params)
    with LLM(model=str(tiny_llama), **ROOM, **NARROW, **double("gpu")) as llm, counted(llm) as found:
        assert answers(llm, params) == wanted
    assert found["waited"] == 0 and found["left"] > 4, found


def test_sequences_are_preempted_with_a_token_in_flight(tiny_llama: Path) -> None:
    short = {"num_gpu_blocks_override": 9, "max_num_seqs": 4, "max_model_len": 48}
    params = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True) for _ in range(5)]
    wanted = expected(tiny_llama, params, **short)
    with LLM(model=str(tiny_llama), **(ROOM | NARROW | short), **double("gpu")) as llm, counted(llm) as found:
        assert answers(llm, params) == wanted
        assert llm.stats().num_preemptions > 0
    assert found["waited"] == 0, found


def test_the_host_knows_the_tokens_that_a_request_asks_it_to_look_at(tiny_llama: Path) -> None:
    """Penalties, and log-probabilities, in company of requests that ask for nothing; and behind them nobody waits again."""
    params = list(SAMPLED)
    params[1] = SamplingParams(temperature=0.5, seed=1, max_tokens=7, ignore_eos=True, presence_penalty=1.5)
    params[2] = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, repetition_penalty=1.3, logprobs=2)
    params[3] = SamplingParams(temperature=0, max_tokens=8, min_tokens=3, bad_words=["o"])
    wanted = expected(tiny_llama, params)
    with LLM(model=str(tiny_llama), **ROOM, **NARROW, **double("gpu")) as llm, counted(llm) as found:
        assert answers(llm, params) == wanted
    assert 0 < found["waited"] < found["behind another"], found


def test_a_step_that_fails_when_it_is_asked_for_is_the_one_that_failed(tiny_llama: Path) -> None:
    """Steps that the host computes wait until they are asked for, often by the plan of the next one."""
    penalized = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, presence_penalty=1.5)
    params = [penalized for _ in range(3)]
    wanted = expected(tiny_llama, params)
    with LLM(model=str(tiny_llama), **ROOM, **NARROW, **double("gpu")) as llm:
        runner = worker_of(llm).runner
        compute = runner.compute
        calls = 0

        def failing(prepared):
            nonlocal calls
            calls += 1
            if calls == 4:
                raise RuntimeError("made up")
            return compute(prepared)

        runner.compute = failing
        assert answers(llm, params) == wanted
        stats = llm.stats()
        assert calls > 4 and stats.num_failed_steps == 1 and stats.num_violations == 0


def test_states_are_kept_as_the_step_before_left_them(tiny_lfm2: Path) -> None:
    """A step that waits to be asked for is computed before the next plan's copies are made."""
    settings = {"dtype": "float32", "max_model_len": 128, "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
    prompt = [1, *range(10, 34)]
    asked = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1)

    def told(llm: LLM, token_ids: list[int]) -> tuple[list[int], list[float], int]:
        (output,) = llm.generate([{"prompt_token_ids": token_ids}], asked, use_tqdm=False)
        numbers = [entry.logprob for entries in output.outputs[0].logprobs for entry in entries.values()]
        return list(output.outputs[0].token_ids), numbers, output.num_cached_tokens

    with LLM(str(tiny_lfm2), **settings, enable_prefix_caching=False, **TORCH) as llm:
        first, _, _ = told(llm, prompt)
        wanted = told(llm, [*prompt, *first, 40])
    on_device = double("gpu") | {"attention_backend": "full=double_attention,state=torch_sdpa"}
    with LLM(str(tiny_lfm2), **settings, mamba_block_size=4, **on_device) as llm, watched(llm):
        assert told(llm, prompt)[0] == first
        token_ids, numbers, num_cached = told(llm, [*prompt, *first, 40])
    assert (token_ids, numbers) == wanted[:2] and num_cached > len(prompt)


def test_tokens_that_are_told_late_go_to_the_sequence_that_expected_them() -> None:
    table = TokenTable(3, 8)
    table.start(0, [1, 2], [])
    table.start(1, [3], [4])
    both = table.expect(np.array([0, 1]))
    only_first = table.expect(np.array([0]))
    assert table.num_tokens(np.array([0, 1])).tolist() == [4, 3] and table.num_expected.tolist() == [2, 1, 0]
    table.start(1, [7, 8, 9], [])
    table.tell(both, np.array([10, 11], np.int32))
    table.tell(only_first, np.array([12], np.int32))
    assert table.array[0, :4].tolist() == [1, 2, 10, 12] and table.array[1, :3].tolist() == [7, 8, 9]
    assert table.num_expected.tolist() == [0, 0, 0]
    assert table.num_tokens(np.array([0, 1])).tolist() == [4, 3]
