"""Beam search over HTTP: the beams of `LLM.beam_search`, as choices of an answer; what does not go with them is refused."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from core import LLM, BeamSearchParams, SamplingParams
from core.api.errors import RequestError
from core_apis.beams import beam_outputs, beams_of
from core_apis.protocol.completions import CompletionRequest
from core_frontend.api.outputs import RequestOutput
from core_frontend.request_terms import RequestTerms
from tests.apis.conftest import RunningServer
from tests.tiny_models import save_checkpoint

ENDS = [2, *range(40, 52)]
PROMPT = [1, 70, 71, 72]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = save_checkpoint(tmp_path_factory.mktemp("beams"), seed=3, eos_token_id=ENDS)
    with LLM(str(path), dtype="float32", max_model_len=64, kv_cache_memory_bytes="8M", max_logprobs=-1) as made:
        yield made


def found_over(llm: LLM, body: dict[str, Any], prompt: list[int], fail_at: int | None = None) -> list[RequestOutput]:
    """The outputs of a search whose steps this engine computes. fail_at: step that ends with an error."""

    async def generate(given: Any, params: Any, request_id: str, terms: Any) -> AsyncGenerator[RequestOutput, None]:
        assert params.max_tokens == 1
        [output] = llm.generate([given], params, use_tqdm=False)
        if fail_at is not None and request_id.split("-")[1] == str(fail_at):
            output.outputs[0].logprobs = None
            output.outputs[0].finish_reason, output.outputs[0].stop_reason = "error", "it broke"
        yield output

    engine: Any = SimpleNamespace(generate=generate, config=llm._config, tokenizer=llm._tokenizer)
    request = CompletionRequest(**body)
    params = SamplingParams(n=body["n"], max_tokens=body["max_tokens"], logprobs=body.get("logprobs"))
    beams = beams_of(request, params, 64)
    assert beams is not None

    async def run() -> list[RequestOutput]:
        given = {"prompt": None, "prompt_token_ids": prompt, "cache_salt": None}
        return [each async for each in beam_outputs(engine, given, params, "id", RequestTerms(), beams)]

    return asyncio.run(run())


@pytest.mark.parametrize("penalty", [1.0, -0.5])
def test_beams_are_those_of_the_library(llm: LLM, penalty: float) -> None:
    body = {"use_beam_search": True, "n": 3, "max_tokens": 10, "length_penalty": penalty, "logprobs": 2}
    [output] = found_over(llm, body, PROMPT)
    params = BeamSearchParams(beam_width=3, max_tokens=10, length_penalty=penalty)
    [expected] = llm.beam_search([{"prompt_token_ids": PROMPT}], params)
    assert output.finished and output.request_id == "id" and output.prompt_token_ids == PROMPT
    for choice, beam in zip(output.outputs, expected.sequences, strict=True):
        assert choice.token_ids == beam.tokens[len(PROMPT) :] and choice.finish_reason == beam.finish_reason
        assert choice.cumulative_logprob == pytest.approx(beam.cum_logprob, abs=1e-5)
        assert llm._tokenizer is not None and choice.text == llm._tokenizer.decode(choice.token_ids)
        assert choice.logprobs is not None and len(choice.logprobs) == len(choice.token_ids)
        for token, row in zip(choice.token_ids, choice.logprobs, strict=True):
            assert token in row and 2 <= len(row) <= 3


def test_a_failed_step_is_the_failure_of_the_request(llm: LLM) -> None:
    [output] = found_over(llm, {"use_beam_search": True, "n": 2, "max_tokens": 10}, PROMPT, fail_at=1)
    assert output.outputs[0].finish_reason == "error" and output.outputs[0].stop_reason == "it broke"


def test_a_full_context_has_no_beams(llm: LLM) -> None:
    with pytest.raises(RequestError, match="no beam has room"):
        found_over(llm, {"use_beam_search": True, "n": 2, "max_tokens": 10}, [1] * 64)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_choices_are_beams(server: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    body |= {"use_beam_search": True, "n": 2, "max_tokens": 3}
    answer = server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert told["usage"]["completion_tokens"] <= 6


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream": True}, "stream"),
        ({"stop": ["a"]}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 2.0}}, "logit_bias"),
        ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
        ({"best_of": 3, "n": 2}, "n"),
        ({"n": 100}, "beam_width"),
    ],
    ids=str,
)
def test_what_does_not_go_with_beams_is_refused_by_name(
    server: RunningServer, more: dict[str, Any], param: str
) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "Hi", "use_beam_search": True, "max_tokens": 3} | more)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
