"""Explanations from records whose numbers are known: phases, limits and the ends of several choices."""

import time
from typing import Any

import pytest
from fakes import make_config

from core.api.errors import RequestError
from core.api.messages import EngineOutput
from core.api.sampling_params import RequestOutputKind, SamplingParams
from core.api.sequence_record import CacheMiss, SequenceRecord
from core_frontend.api.explanation import Explanation
from core_frontend.output_processor import OutputProcessor
from core_frontend.prompts.input_processor import InputProcessor
from core_frontend.request_terms import ExplainTerms, RequestTerms
from core_tokens.tokenizer import Tokenizer


def explained(
    tokenizer: Tokenizer,
    ends: list[EngineOutput],
    *,
    model: dict[str, Any] | None = None,
    begin: float = 0.0,
    terms: ExplainTerms | None = None,
    **params: Any,
) -> Explanation:
    """The explanation of a request for the prompt 0123456789, whose choices end with `ends`."""
    made = InputProcessor(make_config(**model or {}).model, tokenizer)
    asked = RequestTerms(arrival=begin, timeout_s=9.0, explain=terms or ExplainTerms({"max_tokens": "request"}))
    given = SamplingParams(n=len(ends), output_kind=RequestOutputKind.DELTA, **params)
    processor = OutputProcessor(tokenizer)
    processor.add(made.process("r", "0123456789", given, asked, deadline=begin + 9.0))
    outputs = [output for end in ends for output in processor.process([end]).outputs]
    assert [output.explain is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    told = outputs[-1].explain
    assert told is not None
    return told


def ended(choice: int, record: SequenceRecord | None, count: int = 2, reason: Any = "length") -> EngineOutput:
    return EngineOutput("r", choice, 0, [97] * count, finish_reason=reason, num_cached_tokens=4, record=record)


def test_phases_of_several_choices(tokenizer: Tokenizer) -> None:
    begin = time.monotonic() - 100.0
    first = SequenceRecord(begin + 1, begin + 3, begin + 6, begin + 10, 4, num_steps=5, num_drafts=3, num_accepted=1)
    other = SequenceRecord(begin + 1, begin + 4, begin + 5, begin + 20, 4, num_steps=7, num_preemptions=2)
    ends = [ended(0, first), ended(1, other)]
    told = explained(tokenizer, ends, begin=begin, terms=ExplainTerms(grammar_s=0.5), max_tokens=2)
    times = told.times
    phases = (times.preparation, times.queue, times.prefill, times.decode)
    assert phases == pytest.approx((1.0, 2.0, 2.0, 15.0))
    assert times.total == pytest.approx(100.0, abs=20.0)
    assert times.grammar == 0.5
    assert (told.steps, told.preemptions, told.drafts.proposed, told.drafts.accepted) == (12, 2, 3, 1)


def test_the_place_of_a_miss_shows_the_text_around_it(tokenizer: Tokenizer) -> None:
    record = SequenceRecord(1.0, 1.0, 1.0, 1.0, 4, CacheMiss(4, "history_changed", 6), 4, 0)
    told = explained(tokenizer, [ended(0, record)], max_tokens=2)
    miss = told.cache.first_miss
    assert miss is not None and (miss.before, miss.after, miss.block, miss.differs_at) == ("0123", "456789", 1, 6)
    assert (told.cache.cached_tokens, told.cache.from_memory) == (4, 4)
    first = explained(tokenizer, [ended(0, record)], terms=ExplainTerms(first_turn=True), max_tokens=2)
    assert first.cache.first_miss is not None
    assert (first.cache.first_miss.cause, first.cache.first_miss.differs_at) == ("first_seen", None)


RUNS = SequenceRecord(1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("end", "model", "params", "limit"),
    [
        (ended(0, RUNS), {}, {"max_tokens": 2}, ("max_tokens", 2)),
        (ended(0, RUNS), {"generation": {"max_new_tokens": 2}}, {"max_tokens": 9}, ("max_new_tokens", 2)),
        (ended(0, RUNS, 54), {}, {"max_tokens": None}, ("max_model_len", 54)),
        (ended(0, RUNS), {}, {"max_tokens": 9}, ("kv_cache", 2)),
        (ended(0, RUNS, reason="timeout"), {}, {"max_tokens": 9}, ("timeout", 9)),
        (ended(0, RUNS, reason="stop"), {}, {"max_tokens": 9}, None),
        (ended(0, None, reason="stop"), {}, {"max_tokens": 9}, None),
        (ended(0, SequenceRecord(waited_for="max_num_seqs"), reason="stop"), {}, {}, ("max_num_seqs", None)),
        (ended(0, RUNS, reason="stop"), {}, {"truncate_prompt_tokens": 3}, ("truncate_prompt_tokens", 3)),
    ],
)
def test_what_cut_something_is_told(
    tokenizer: Tokenizer,
    end: EngineOutput,
    model: dict[str, Any],
    params: dict[str, Any],
    limit: tuple[str, float] | None,
) -> None:
    told = explained(tokenizer, [end], model=model, **params)
    assert [(one.name, one.value) for one in told.limits] == ([] if limit is None else [limit])


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (SequenceRecord(1.0), "before the request started"),
        (SequenceRecord(1.0, 2.0), "while the prompt was computed"),
        (RUNS, "while tokens were generated"),
    ],
)
def test_a_timeout_names_its_phase(tokenizer: Tokenizer, record: SequenceRecord, words: str) -> None:
    (limit,) = explained(tokenizer, [ended(0, record, reason="timeout")], max_tokens=9).limits
    assert words in limit.effect


def test_an_engine_that_explains_nothing_refuses(tokenizer: Tokenizer) -> None:
    made = InputProcessor(make_config().model, tokenizer, "off")
    made.process("r", "text", SamplingParams())
    with pytest.raises(RequestError, match="--explain-answers off") as caught:
        made.process("r", "text", SamplingParams(), RequestTerms(explain=ExplainTerms()))
    assert caught.value.param == "explain"
