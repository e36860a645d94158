"""A stream that is cut anywhere and resumed in a fresh engine: the same tokens and log-probabilities, to the bit."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.api.config import EngineConfig
from core.api.messages import EngineOutput, EngineRequest, Resume, TokenLogprobs
from core.api.sampling_params import SamplingParams
from core_config.resolve import resolve
from core_supervision.link.inproc import InprocClient

LENGTH = 40
CUTS = (1, 2, 19, 38)
SOURCE = random.Random(11)
PROMPT = [SOURCE.randrange(4, 250) for _ in range(21)]

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.3, "top_p": 0.95},
    "second choice": {"temperature": 1.3, "n": 2},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.9, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "logprobs": {"temperature": 0.9, "logprobs": 3, "prompt_logprobs": 1},
    "minimum": {"temperature": 5.0, "min_tokens": 30},
    "stop token": {"temperature": 0, "min_tokens": 3},
}


def make_engine(path: Path) -> InprocClient:
    given = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4}
    given |= {"kv_cache_memory_bytes": 1 << 20, "device": "cpu", "use_tqdm_on_load": False}
    config: EngineConfig = resolve({"model": str(path), **given}, context="llm", environ={}).engine
    return InprocClient(config)


def make_request(case: str, stops: list[int]) -> EngineRequest:
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True, **CASES[case])
    return EngineRequest(case, params.n - 1, PROMPT, params, 77, stops)


class Stream:
    """What became of one sequence."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.starts: list[int] = []
        self.num_cached: set[int] = set()
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        self.end: tuple[Any, Any] | None = None

    def take(self, output: EngineOutput) -> None:
        self.starts.append(output.start)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        if output.finish_reason is not None:
            self.end = (output.finish_reason, output.stop_reason)
            self.num_cached.add(output.num_cached_tokens)


def run(engine: InprocClient, requests: list[EngineRequest]) -> dict[str, Stream]:
    streams = {request.request_id: Stream() for request in requests}
    for request in requests:
        engine.add([request])
    while not all(stream.end for stream in streams.values()):
        for output in engine.step():
            streams[output.request_id].take(output)
    engine.core.scheduler.check_integrity()
    return streams


def stops_of(case: str, greedy: list[int]) -> list[int]:
    """For one case a token that ends the stream late; for another all the likely ones, before `min_tokens`."""
    if case == "stop token":
        late = next(token for index, token in enumerate(greedy) if index > 25 and token not in greedy[3:index])
        return [late]
    return list(range(0, 256, 2)) if case == "minimum" else []


@pytest.fixture(scope="module")
def uncut(tiny_llama: Path) -> dict[str, tuple[EngineRequest, Stream]]:
    engine = make_engine(tiny_llama)
    greedy = run(engine, [make_request("greedy", [])])["greedy"].token_ids
    requests = {case: make_request(case, stops_of(case, greedy)) for case in CASES}
    streams = run(engine, list(requests.values()))
    engine.close()
    return {case: (requests[case], streams[case]) for case in CASES}


def test_resumed_streams_are_the_uncut_ones(tiny_llama: Path, uncut: dict[str, tuple[EngineRequest, Stream]]) -> None:
    cut: list[EngineRequest] = []
    for case, (request, stream) in uncut.items():
        assert len(stream.token_ids) > 25
        last = len(stream.token_ids) - 1
        for at in sorted({last, *(min(index, last) for index in CUTS)}):
            resume = Resume(stream.token_ids[:at], num_cached_tokens=3)
            cut.append(msgspec.structs.replace(request, request_id=f"{case}@{at}", resume=resume))
    engine = make_engine(tiny_llama)
    resumed = run(engine, cut)
    engine.close()
    for name, rest in resumed.items():
        case, _, cut_at = name.partition("@")
        at, whole = int(cut_at), uncut[case][1]
        assert rest.token_ids == whole.token_ids[at:], name
        assert rest.logprobs == whole.logprobs[at:], name
        assert rest.starts[0] == at
        assert rest.end == whole.end, name
        assert rest.num_cached == {3}
        assert rest.prompt_logprobs is None


def test_the_cases_are_what_they_say(uncut: dict[str, tuple[EngineRequest, Stream]]) -> None:
    streams = {case: stream for case, (_, stream) in uncut.items()}
    assert streams["stop token"].end == ("stop", uncut["stop token"][0].stop_token_ids[0])
    assert streams["greedy"].end == ("length", None)
    assert streams["minimum"].end[0] == "stop"  # type: ignore[index]
    assert len(streams["minimum"].token_ids) > 30
    assert streams["second choice"].token_ids != streams["seeded"].token_ids
    assert streams["penalties"].token_ids != streams["greedy"].token_ids
    assert len(streams["logprobs"].logprobs) == LENGTH
    assert len(streams["logprobs"].prompt_logprobs or ()) == len(PROMPT) - 1


def test_nothing_was_given_yet(tiny_llama: Path, uncut: dict[str, tuple[EngineRequest, Stream]]) -> None:
    request, whole = uncut["logprobs"]
    engine = make_engine(tiny_llama)
    again = run(engine, [msgspec.structs.replace(request, resume=Resume([]))])["logprobs"]
    engine.close()
    assert (again.token_ids, again.logprobs) == (whole.token_ids, whole.logprobs)
    assert again.prompt_logprobs == whole.prompt_logprobs


def test_what_can_get_no_more_tokens_is_told_so(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    base = EngineRequest("full", 0, PROMPT, SamplingParams(max_tokens=LENGTH), 1, resume=Resume([5] * LENGTH))
    long = EngineRequest("long", 0, PROMPT, SamplingParams(max_tokens=500), 1, resume=Resume([5] * 107))
    ends = {name: stream.end for name, stream in run(engine, [base, long]).items()}
    engine.close()
    assert ends["full"] == ("error", "The request resumes after 40 tokens; expected fewer than its max_tokens, 40.")
    assert "resumes at 128 tokens (prompt and output); expected at most 127" in ends["long"][1]  # type: ignore[index]
