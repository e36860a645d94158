"""Tokens become text, stop strings cut it, and the three kinds of output tell the same story."""

from typing import Any

import pytest
from fakes import EOS, entry, make_config

from core.api.messages import EngineOutput
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core_frontend.api.outputs import RequestOutput
from core_frontend.output_processor import OutputProcessor
from core_frontend.prompts.input_processor import InputProcessor
from core_frontend.request_terms import LENIENT, RequestTerms
from core_tokens.tokenizer import Tokenizer

KINDS = list(RequestOutputKind)


class Bench:
    """One request fed with texts, as the engine would."""

    def __init__(self, tokenizer: Tokenizer, terms: RequestTerms = LENIENT, **params: Any) -> None:
        self.processor = OutputProcessor(tokenizer)
        made = InputProcessor(make_config().model, tokenizer)
        asked = SamplingParams(max_tokens=50, **params)
        self.processor.add(made.process("r", "prompt", asked, terms, arrival_time=1.0))
        self.starts: dict[int, int] = {}
        self.seen: list[RequestOutput] = []
        self.stopped: list[tuple[str, int]] = []

    def feed(self, data: bytes | list[int], choice: int = 0, **fields: Any) -> list[RequestOutput]:
        start = self.starts.get(choice, 0)
        self.starts[choice] = start + len(data)
        processed = self.processor.process([EngineOutput("r", choice, start, list(data), **fields)])
        self.seen += processed.outputs
        self.stopped += processed.stopped
        return processed.outputs

    def text(self, choice: int = 0) -> str:
        return "".join(one.text for output in self.seen for one in output.outputs if one.index == choice)

    @property
    def last(self) -> RequestOutput:
        return self.seen[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_cannot_be_put_together_ends_alone(
    kind: RequestOutputKind, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer, output_kind=kind, n=2)
    other = InputProcessor(make_config().model, tokenizer)
    bench.processor.add(other.process("other", "prompt", SamplingParams(max_tokens=9), LENIENT, arrival_time=1.0))
    state = bench.processor.find("r")
    assert state is not None

    def broken(interval: int = 1) -> None:
        raise KeyError("no such piece")

    monkeypatch.setattr(state, "take", broken)
    processed = bench.processor.process(
        [EngineOutput("r", 0, 0, list(b"a")), EngineOutput("other", 0, 0, list(b"b"), finish_reason="length")]
    )
    failed, whole = processed.outputs
    assert failed.finished and {one.finish_reason for one in failed.outputs} == {"error"}
    assert "could not be put together (KeyError" in str(failed.outputs[1].stop_reason)
    assert whole.outputs[0].text == "b"
    assert processed.stopped == [("r", 0), ("r", 1)], "the engine computes them no further"
    assert len(bench.processor) == 0


def test_kinds_of_output(tokenizer: Tokenizer) -> None:
    stories = {}
    for kind in KINDS:
        bench = Bench(tokenizer, output_kind=kind)
        for piece in (b"one ", b"two ", b"three"):
            bench.feed(piece)
        bench.feed([EOS], finish_reason="stop")
        stories[kind] = [(output.outputs[0].text, output.outputs[0].token_ids) for output in bench.seen]
        assert bench.last.finished
        assert bench.last.outputs[0].finish_reason == "stop"
        assert len(bench.processor) == 0
    everything = ("one two three", [*b"one two three", EOS])
    assert stories[RequestOutputKind.FINAL_ONLY] == [everything]
    assert stories[RequestOutputKind.CUMULATIVE][-1] == everything
    assert [text for text, _ in stories[RequestOutputKind.CUMULATIVE]][:2] == ["one ", "one two "]
    deltas = stories[RequestOutputKind.DELTA]
    assert "".join(text for text, _ in deltas) == everything[0]
    assert [token for _, ids in deltas for token in ids] == everything[1]


def test_a_character_split_over_steps_is_never_shown_broken(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, output_kind=RequestOutputKind.DELTA)
    for byte in "naïve 🦜".encode():
        bench.feed([byte])
        assert "\ufffd" not in bench.text()
    bench.feed([EOS], finish_reason="stop")
    assert bench.text() == "naïve 🦜"


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize(("include", "expected"), [(False, "say "), (True, "say STOP")])
def test_stop_string(tokenizer: Tokenizer, chunk: int, include: bool, expected: str) -> None:
    bench = Bench(
        tokenizer, stop=["STOP", "never"], include_stop_str_in_output=include, output_kind=RequestOutputKind.DELTA
    )
    data = b"say STOP now"
    for i in range(0, len(data), chunk):
        bench.feed(data[i : i + chunk])
        assert expected.startswith(bench.text())
    completion = bench.last.outputs[0]
    assert (bench.text(), completion.finish_reason, completion.stop_reason) == (expected, "stop", "STOP")
    assert bench.last.finished
    assert bench.stopped == [("r", 0)]
    kept = [token for output in bench.seen for one in output.outputs for token in one.token_ids]
    assert bytes(kept) == b"say STOP"


def test_stop_string_in_the_last_tokens_needs_no_abort(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop="STOP")
    bench.feed(b"a STOP", finish_reason="length")
    assert bench.last.outputs[0].stop_reason == "STOP"
    assert bench.last.outputs[0].finish_reason == "stop"
    assert bench.stopped == []


def test_half_a_stop_string_is_text_in_the_end(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop="STOP", output_kind=RequestOutputKind.DELTA)
    bench.feed(b"a STO")
    assert bench.text() == "a "
    bench.feed(b"", finish_reason="length")
    assert bench.text() == "a STO"


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop="x", min_tokens=3)
    bench.feed(b"axa")
    assert not bench.seen[-1].finished
    bench.feed(b"bx")
    assert bench.last.outputs[0].text == "axab"


@pytest.mark.parametrize(("include", "expected"), [(False, "ab"), (True, "ab!")])
def test_stop_token_is_a_token_but_not_text(tokenizer: Tokenizer, include: bool, expected: str) -> None:
    bench = Bench(tokenizer, stop_token_ids=[33], include_stop_str_in_output=include)
    bench.feed(b"ab!", finish_reason="stop", stop_reason=33)
    completion = bench.last.outputs[0]
    assert (completion.text, completion.token_ids, completion.stop_reason) == (expected, [97, 98, 33], 33)


def test_logprobs(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, logprobs=2, prompt_logprobs=1)
    bench.feed(b"ab", logprobs=[entry(97, 2), entry(98, 2)], prompt_logprobs=[entry(t, 1) for t in b"rompt"])
    bench.feed(b"c", logprobs=[entry(99, 2)], finish_reason="length")
    completion = bench.last.outputs[0]
    assert completion.logprobs is not None
    assert [next(iter(position)) for position in completion.logprobs] == [97, 98, 99]
    first = completion.logprobs[0]
    assert (first[97].logprob, first[97].rank, first[97].decoded_token) == (-0.6931, 1, "a")
    assert set(first) == {97, 0, 1}
    assert completion.cumulative_logprob == pytest.approx(3 * -0.6931)
    prompt = bench.last.prompt_logprobs
    assert prompt is not None
    assert prompt[0] is None
    assert [next(iter(position)) for position in prompt[1:] if position] == list(b"rompt")


def test_logprobs_end_with_the_tokens(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, logprobs=0, stop="b")
    bench.feed(b"abc", logprobs=[entry(t, 0) for t in b"abc"])
    completion = bench.last.outputs[0]
    assert completion.logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids) == 2


def test_several_choices(tokenizer: Tokenizer) -> None:
    for kind in KINDS:
        bench = Bench(tokenizer, n=3, output_kind=kind)
        for choice, word in ((2, b"two"), (0, b"zero"), (1, b"one")):
            bench.feed(word, choice)
        bench.feed(b"!", 0, finish_reason="length")
        bench.feed(b"?", 2, finish_reason="length")
        assert not any(output.finished for output in bench.seen)
        bench.feed(b".", 1, finish_reason="length")
        assert bench.last.finished
        if kind is RequestOutputKind.DELTA:
            assert [bench.text(choice) for choice in range(3)] == ["zero!", "one.", "two?"]
        else:
            assert [one.text for one in bench.last.outputs] == ["zero!", "one.", "two?"]
        assert bench.last.metrics.num_generation_tokens == 13


def test_times_and_counts(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.feed(b"a", num_cached_tokens=4)
    bench.feed(b"b", finish_reason="length")
    metrics = bench.last.metrics
    assert metrics.arrival_time == 1.0
    assert 1.0 < metrics.first_token_time <= metrics.last_token_time
    assert (metrics.num_generation_tokens, bench.last.num_cached_tokens) == (2, 4)
    assert bench.last.prompt == "prompt"
    assert bytes(bench.last.prompt_token_ids) == b"prompt"


def test_abort_tells_what_was_there(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, stop="STOP")
    bench.feed(b"a ST")
    (last,) = bench.processor.abort(["r", "unknown"])
    assert last.finished
    assert (last.outputs[0].text, last.outputs[0].finish_reason) == ("a ST", "abort")
    assert bench.feed(b"late") == []


def test_one_request_that_cannot_be_translated_ends_alone(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, logprobs=0)
    bench.feed(b"a", logprobs=[None])
    completion = bench.last.outputs[0]
    assert completion.finish_reason == "error"
    assert bench.stopped == [("r", 0)]


def test_without_text(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, detokenize=False, logprobs=0)
    bench.feed(b"ab", finish_reason="length", logprobs=[entry(t, 0) for t in b"ab"])
    completion = bench.last.outputs[0]
    assert (completion.text, completion.token_ids) == ("", [97, 98])
    assert completion.logprobs is not None
    assert completion.logprobs[0][97].decoded_token is None


def test_live_ids_are_unique(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    with pytest.raises(ValueError, match="live"):
        bench.processor.add(InputProcessor(make_config().model, tokenizer).process("r", "x", SamplingParams()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 3, 50])
@pytest.mark.parametrize(
    ("stop", "expected"), [(None, "a<eos>b<eos>c"), ("os>c", "a<eos>b<e"), ("eos>x", "a<eos>b<eos>c")]
)
def test_special_tokens_are_told_when_asked_for(
    tokenizer: Tokenizer, kind: RequestOutputKind, chunk: int, stop: str | None, expected: str
) -> None:
    bench = Bench(tokenizer, RequestTerms(marks_specials=True), output_kind=kind, stop=stop, ignore_eos=True)
    ids = [*b"a", EOS, *b"b", EOS, *b"c"]
    for begin in range(0, len(ids), chunk):
        is_last = begin + chunk >= len(ids)
        bench.feed(ids[begin : begin + chunk], finish_reason="length" if is_last else None)
    completions = [output.outputs[0] for output in bench.seen]
    told = [one.text[start:end] for one in completions for start, end in one.specials]
    if kind is RequestOutputKind.DELTA:
        assert bench.text() == expected
    else:
        last = completions[-1]
        assert last.text == expected
        told = [last.text[start:end] for start, end in last.specials]
    assert told == (["<eos>", "<e"] if stop == "os>c" else ["<eos>", "<eos>"])


def test_special_tokens_are_left_out_otherwise(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, ignore_eos=True)
    bench.feed([*b"a", EOS, *b"b"], finish_reason="length")
    assert (bench.text(), bench.last.outputs[0].specials) == ("ab", ())
