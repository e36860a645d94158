"""Requests are checked against the model before they enter the engine; each error names the field and a way out."""

from typing import Any

import msgspec
import pytest
from fakes import EOS, make_config

from core.api.errors import RequestError
from core.api.sampling_params import SamplingParams
from core_frontend.prompts.input_processor import MAX_N, InputProcessor
from core_frontend.request_terms import LENIENT, RequestTerms
from core_tokens.tokenizer import Tokenizer


@pytest.fixture
def processor(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(make_config().model, tokenizer)


def test_the_checkpoints_limit_caps_every_request(tokenizer: Tokenizer) -> None:
    model = msgspec.structs.replace(make_config().model, generation={"max_new_tokens": 5})
    limited = InputProcessor(model, tokenizer)
    for asked in (None, 40):
        assert limited.process("r", "hi", SamplingParams(max_tokens=asked)).requests[0].params.max_tokens == 5
    assert limited.process("r", "hi", SamplingParams(max_tokens=3)).requests[0].params.max_tokens == 3
    with pytest.raises(RequestError, match="min_tokens is 6"):
        limited.process("r", "hi", SamplingParams(max_tokens=40, min_tokens=6))


def test_half_a_character_is_refused_by_the_name_of_its_field(processor: InputProcessor) -> None:
    half = "x\ud800"
    wrong: dict[str, tuple[str, Any, SamplingParams, str]] = {
        "request_id": (half, "hi", SamplingParams(), ""),
        "user": ("r", "hi", SamplingParams(), half),
        "prompt": ("r", half, SamplingParams(), ""),
        "cache_salt": ("r", {"prompt": "hi", "cache_salt": half}, SamplingParams(), ""),
        "stop": ("r", "hi", SamplingParams(stop=["fine", half]), ""),
        "bad_words": ("r", "hi", SamplingParams(bad_words=[half]), ""),
    }
    for param, (name, prompt, params, user) in wrong.items():
        with pytest.raises(RequestError, match=param if param != "prompt" else "whole characters") as caught:
            processor.process(name, prompt, params, RequestTerms(user=user))
        assert caught.value.param == param


def test_forms_of_a_prompt(processor: InputProcessor) -> None:
    forms: list[Any] = [
        "hi",
        {"prompt": "hi"},
        {"prompt_token_ids": [104, 105]},
        [104, 105],
        {"prompt": "other text", "prompt_token_ids": [104, 105], "cache_salt": "pepper"},
    ]
    found = [processor.process("r", form, SamplingParams()) for form in forms]
    assert [entry.requests[0].prompt_token_ids for entry in found] == [[104, 105]] * 5
    assert [entry.prompt for entry in found] == ["hi", "hi", None, None, "other text"]
    assert found[4].requests[0].cache_salt == "pepper"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ([], "empty"),
        ({"prompt_token_ids": []}, "empty"),
        ({}, "neither"),
        (7, "int"),
        (None, "NoneType"),
        ({"prompt": 7}, "int"),
        ({"promt": "hi"}, "Did you mean 'prompt'"),
        ([1, "2"], r"\[1\] is '2'"),
        ([1, True], r"\[1\] is True"),
        ([1, 2.0], r"\[1\] is 2.0"),
        ([-1], "token id -1"),
        ([257], "token id 257; the vocabulary of 'fake' goes from 0 to 256"),
        ({"prompt_token_ids": "abc"}, "str"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ("x" * 64, "64 tokens, but at most 63"),
    ],
)
def test_bad_prompts(processor: InputProcessor, prompt: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        processor.process("r", prompt, SamplingParams())
    assert caught.value.param is not None
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"n": MAX_N + 1}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"allowed_token_ids": [1, 257]}, "allowed_token_ids"),
        ({"logit_bias": {257: 1.0}}, "logit_bias"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"max_tokens": None, "min_tokens": 62}, "min_tokens"),
    ],
)
def test_bad_parameters(processor: InputProcessor, params: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        processor.process("r", "abc", SamplingParams(**params))
    assert caught.value.param == param


def test_parameters_changed_after_construction_are_checked_again(processor: InputProcessor) -> None:
    params = SamplingParams()
    params.temperature = -1.0
    with pytest.raises(RequestError, match="temperature"):
        processor.process("r", "abc", params)
    with pytest.raises(RequestError, match="dict"):
        processor.process("r", "abc", {"temperature": 1})  # type: ignore[arg-type]


def test_whole_vocabulary_of_logprobs_when_allowed(tokenizer: Tokenizer) -> None:
    processor = InputProcessor(make_config(max_logprobs=-1).model, tokenizer)
    assert processor.process("r", "a", SamplingParams(logprobs=-1, prompt_logprobs=200)).requests


def test_output_length(processor: InputProcessor) -> None:
    def resolved(strict: bool, max_tokens: int | None) -> int | None:
        params = SamplingParams(max_tokens=max_tokens)
        return (
            processor.process("r", "x" * 50, params, RequestTerms(strict_length=strict)).requests[0].params.max_tokens
        )

    assert resolved(True, None) == 14
    assert resolved(True, 14) == 14
    assert resolved(False, 1000) == 14
    with pytest.raises(
        RequestError, match=r"max_tokens is 15, but after a prompt of 50 tokens only 14 .* 64"
    ) as caught:
        resolved(True, 15)
    assert caught.value.param == "max_tokens"


def test_truncation_keeps_the_end(processor: InputProcessor) -> None:
    def kept(text: str, keep: int, max_tokens: int = 4) -> bytes:
        params = SamplingParams(truncate_prompt_tokens=keep, max_tokens=max_tokens)
        return bytes(
            processor.process("r", text, params, RequestTerms(strict_length=True)).requests[0].prompt_token_ids
        )

    assert kept("abcdef", 2) == b"ef"
    assert kept("abcdef", 50) == b"abcdef"
    assert kept("y" + "x" * 100, -1) == b"x" * 60


def test_choices_share_everything_but_their_index(processor: InputProcessor) -> None:
    entry = processor.process("r", "abc", SamplingParams(n=3, seed=-1), RequestTerms(priority=5), arrival_time=12.5)
    assert [request.choice for request in entry.requests] == [0, 1, 2]
    assert {request.seed for request in entry.requests} == {2**64 - 1}
    assert {(request.priority, request.arrival_time) for request in entry.requests} == {(5, 12.5)}


def test_seeds(tokenizer: Tokenizer) -> None:
    def seeds(seed: int | None) -> list[int]:
        processor = InputProcessor(make_config(seed=seed).model, tokenizer)
        return [processor.process("r", "abc", SamplingParams()).requests[0].seed for _ in range(3)]

    assert seeds(7) == seeds(7) != seeds(8)
    assert len({*seeds(7), *seeds(None), *seeds(None)}) == 9


def test_stop_tokens(processor: InputProcessor) -> None:
    plain = processor.process("r", "abc", SamplingParams(stop_token_ids=[5, EOS])).requests[0]
    assert sorted(plain.stop_token_ids) == [5, EOS]
    assert plain.eos_token_ids == [EOS]
    ignoring = processor.process("r", "abc", SamplingParams(stop_token_ids=[5], ignore_eos=True)).requests[0]
    assert (ignoring.stop_token_ids, ignoring.eos_token_ids) == ([5], [])


def test_bad_words_at_the_start_and_after_a_space(processor: InputProcessor) -> None:
    request = processor.process("r", "abc", SamplingParams(bad_words=["no", " way"])).requests[0]
    assert [bytes(ids) for ids in request.bad_words_ids] == [b"no", b" no", b"way", b" way"]


def test_without_tokenizer() -> None:
    processor = InputProcessor(make_config().model, None)
    assert processor.process("r", [1, 2], SamplingParams()).requests[0].prompt_token_ids == [1, 2]
    for prompt, params in (("text", {}), ([1], {"stop": "x"}), ([1], {"bad_words": ["x"]})):
        with pytest.raises(RequestError, match="no tokenizer"):
            processor.process("r", prompt, SamplingParams(**params))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"allowed_token_ids": [256], "min_tokens": 2}, "min_tokens"),
        ({"allowed_token_ids": [97, 256], "stop_token_ids": [97], "min_tokens": 2}, "min_tokens"),
        ({"allowed_token_ids": [97], "bad_words": ["a"]}, "bad_words"),
    ],
)
def test_requests_that_leave_nothing_to_sample_are_refused(
    processor: InputProcessor, given: dict[str, Any], named: str
) -> None:
    with pytest.raises(RequestError, match="leaves nothing to sample") as caught:
        processor.process("r", [1, 2], SamplingParams(max_tokens=5, **given))
    assert caught.value.param == "allowed_token_ids" and named in str(caught.value)


def test_penalties_beyond_float32_are_refused() -> None:
    with pytest.raises(RequestError, match="repetition_penalty is 1e-300; expected"):
        SamplingParams(repetition_penalty=1e-300)


def test_a_prompt_is_copied_unless_its_caller_gives_it_away() -> None:
    processor = InputProcessor(make_config().model, None)
    ids = [1, 2, 3]
    for terms, is_same in ((LENIENT, False), (RequestTerms(gives_prompt=True), True)):
        made = processor.process("r", {"prompt_token_ids": ids}, SamplingParams(max_tokens=2, detokenize=False), terms)
        assert made.requests[0].prompt_token_ids == ids and (made.requests[0].prompt_token_ids is ids) is is_same
