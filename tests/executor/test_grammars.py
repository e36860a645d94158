"""Sequences with a grammar: what they say fits it, whatever else they ask for and whatever happens around them."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from core import LLM, SamplingParams
from core.api.errors import PluginError
from core.api.messages import Resume
from core_kit.devices.wired import wired
from core_platforms.cpu.kernels import NativeKernels
from core_runtime.executor.constraints.grammar_backends import GrammarBackends
from core_runtime.executor.uniproc import UniprocExecutor
from tests.executor.regex_grammar import EOS, RegexBackend, byte_texts, compiled, generate, install, text_of
from tests.inside import core_of, with_grammar

PROMPTS = ["the quick brown fox", "abcabcabcabcabcabc", "z", "the quick brown fox and the dog", "free as a bird"]
LOOP = r'(\{"name": "[a-z]{1,4}", "age": [0-9]{1,3}\}\n)+'
PATTERNS = [LOOP, r"(abc|cab)*[xyz]{3}", r"[a-f]{40,60}", LOOP, None]


def params() -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=60, logprobs=2),
        SamplingParams(temperature=0.9, seed=5, max_tokens=40, top_p=0.9, logprobs=2, repetition_penalty=1.2),
        SamplingParams(temperature=1.2, seed=6, max_tokens=50, top_k=50, presence_penalty=0.5, n=2),
        SamplingParams(temperature=1.0, seed=7, max_tokens=70, min_p=0.01, min_tokens=45, logit_bias={70: 2.0}),
        SamplingParams(temperature=0.8, seed=8, max_tokens=40, ignore_eos=True, logprobs=1),
    ]


def results(path: Path, rounds: int = 1, alone: bool = False, **settings: object) -> list:
    llm = LLM(model=str(path), max_model_len=128, max_num_seqs=8, **settings)
    for _ in range(rounds):
        if alone:
            outputs = [
                generate(llm, [prompt], [one], [pattern])[0]
                for prompt, one, pattern in zip(PROMPTS, params(), PATTERNS, strict=True)
            ]
        else:
            outputs = generate(llm, PROMPTS, params(), PATTERNS)
    llm.close()
    return [
        (
            choice.token_ids,
            choice.finish_reason,
            [{t: p.logprob for t, p in pos.items()} for pos in choice.logprobs or []],
        )
        for output in outputs
        for choice in output.outputs
    ]


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_lfm2"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        force_nothing(patch)
        return results(checkpoint, alone=True, enable_prefix_caching=False)


def force_nothing(patch: pytest.MonkeyPatch) -> None:
    """No drafts of forced text."""
    patch.setattr("core.scheduler.state.MOST_FORCED", 0)
    patch.setattr("core_runtime.executor.runner_building.MOST_FORCED", 0)


NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "adaptive": False,
}
TIGHT = "tight"
TIGHT_BLOCKS = {"tiny_llama": 14, "tiny_lfm2": 20}
VARIANTS = {
    "in company": {},
    "nothing is forced": {"forced": False},
    "a kernel that takes no masks": {"masked_race": False},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "prefix cache warm": {"rounds": 2},
    "preempted": {"num_gpu_blocks_override": TIGHT, "rounds": 2},
    "drafts": {"speculative_config": NGRAM},
    "planned ahead": {"async_scheduling": True},
    "drafts planned ahead": {"async_scheduling": True, "speculative_config": NGRAM, "rounds": 2},
    "planned ahead, preempted": {"async_scheduling": True, "num_gpu_blocks_override": TIGHT, "rounds": 2},
    "never captured": {"enforce_eager": True},
    "behind a wire": {"wired": True},
    "drafts behind a wire": {"wired": True, "speculative_config": NGRAM},
}


OF_STATES = ("drafts", "preempted", "planned ahead")
"""The variants that models with states take another way through."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_equal(checkpoint: Path, expected: list, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "lfm2" in checkpoint.name and variant not in OF_STATES:
        pytest.skip("as with llama")
    backend = install(monkeypatch)
    settings = dict(VARIANTS[variant])
    if settings.get("num_gpu_blocks_override") == TIGHT:
        settings["num_gpu_blocks_override"] = TIGHT_BLOCKS[checkpoint.name[:-1]]
    if not settings.pop("forced", True):
        force_nothing(monkeypatch)
    if not settings.pop("masked_race", True):
        monkeypatch.delattr(NativeKernels, "masked_race")
    if settings.pop("wired", False):
        monkeypatch.setattr(UniprocExecutor, "execute", wired(UniprocExecutor.execute))
    assert results(checkpoint, **settings) == expected
    if "speculative_config" in settings:
        assert any(matcher.num_rolled_back for matcher in backend.made)
    if "num_gpu_blocks_override" in settings:
        assert len(backend.made) > 2 * 5  # five sequences with a grammar, two rounds: some began again


def test_answers_fit_their_grammars(expected: list) -> None:
    patterns = [PATTERNS[0], PATTERNS[1], PATTERNS[2], PATTERNS[2], PATTERNS[3]]
    for (token_ids, reason, _), pattern in zip(expected, patterns, strict=False):
        if reason == "stop":
            assert token_ids[-1] == EOS
            assert re.fullmatch(pattern, text_of(token_ids[:-1]))
        else:
            assert reason == "length"
    assert [reason for _, reason, _ in expected].count("stop") >= 3
    assert len(expected[4][0]) > 45


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        with LLM(model=str(tiny_llama), max_model_len=128, max_num_seqs=4) as made:
            yield made


def answer(llm: LLM, pattern: str, **asked: object):
    params = SamplingParams(**{"temperature": 1.0, "seed": 3, "max_tokens": 30, **asked})
    return generate(llm, ["abc"], [params], [pattern])[0].outputs[0]


COMPLETE = {
    "nothing else": {},
    "min_tokens": {"min_tokens": 20},
    "ignore_eos": {"ignore_eos": True},
    "both, greedy": {"min_tokens": 20, "ignore_eos": True, "temperature": 0},
    "ids that leave the end out": {"allowed_token_ids": list(range(4, 260))},
    "ids that leave the end out, and min_tokens": {"allowed_token_ids": list(range(4, 260)), "min_tokens": 9},
    "the end as a bad word": {"bad_words": ["</s>"]},
    "a bias against the end": {"logit_bias": {EOS: -100.0}},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 1.0},
}


@pytest.mark.parametrize("asked", COMPLETE)
def test_an_answer_that_can_only_end_ends(llm: LLM, asked: str) -> None:
    found = answer(llm, "a[bc]d", **COMPLETE[asked])
    assert found.finish_reason == "stop" and found.stop_reason is None, found
    assert re.fullmatch("a[bc]d", text_of(found.token_ids[:-1])) and found.token_ids[-1] == EOS
    assert found.text == text_of(found.token_ids[:-1])


def test_an_answer_that_may_go_on_does_so_until_min_tokens(llm: LLM) -> None:
    assert len(answer(llm, "a*", logit_bias={EOS: 100.0}).token_ids) == 1
    assert len(answer(llm, "a*", logit_bias={EOS: 100.0}, min_tokens=7).token_ids) == 8
    endless = answer(llm, "a*", logit_bias={EOS: 100.0}, ignore_eos=True)
    assert (endless.finish_reason, len(endless.token_ids)) == ("length", 30)
    chosen = answer(llm, "a*", logit_bias={EOS: 100.0}, ignore_eos=True, stop_token_ids=[EOS])
    assert (chosen.finish_reason, chosen.stop_reason) == ("stop", None)


def test_own_stop_tokens_end_a_complete_answer_and_any_other_that_has_them(llm: LLM) -> None:
    texts = byte_texts()
    newline = texts.index("\n")
    complete = answer(llm, "a[bc]d*", stop_token_ids=[newline], logit_bias={newline: 100.0})
    assert (complete.stop_reason, len(complete.token_ids)) == (newline, 3)
    inside = answer(llm, "a\nb", stop_token_ids=[newline])
    assert (inside.stop_reason, len(inside.token_ids)) == (newline, 2)
    # its only continuation ends it: before min_tokens as well
    assert answer(llm, "a\nb", stop_token_ids=[newline], min_tokens=9).stop_reason == newline


def test_what_rules_every_token_out_is_an_error_of_its_own(llm: LLM) -> None:
    texts = byte_texts()
    asked = SamplingParams(temperature=0, max_tokens=9, allowed_token_ids=[texts.index("z"), EOS])
    plain = SamplingParams(temperature=0, max_tokens=9)
    wrong, good = generate(llm, ["abc", "abc"], [asked, plain], ["ab", "ab"])
    assert wrong.outputs[0].finish_reason == "error"
    assert "structured outputs" in wrong.outputs[0].stop_reason
    assert good.outputs[0].text == "ab"


class Breaking(RegexBackend):
    """Matchers that fail in different ways, as their grammar says."""

    def matcher(self, data: bytes):
        how, pattern = data.decode().split(":")
        if how == "made":
            raise OSError("the grammar cannot be read")
        made = super().matcher(pattern.encode())
        if how == "fill":
            made.fill = self._fail
        if how == "accept":
            made.accept = lambda token: False
        return made

    def _fail(self, words):
        raise MemoryError("no room")


@pytest.mark.parametrize(
    ("how", "said"), [("made", "cannot be read"), ("fill", "no room"), ("accept", "does not allow token")]
)
@pytest.mark.parametrize("asked", [{}, {"repetition_penalty": 1.1}])
def test_a_matcher_that_fails_ends_its_request_alone(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str, asked: dict[str, float]
) -> None:
    install(monkeypatch, Breaking(byte_texts()))
    with LLM(model=str(tiny_llama), max_model_len=128, max_num_seqs=4) as llm:
        params = SamplingParams(temperature=0, max_tokens=9, **asked)
        patterns = ["fine:[a-c]{4}", f"{how}:[a-c]{{4}}", None]
        good, bad, free = generate(llm, ["abc"] * 3, [params] * 3, patterns)
        assert bad.outputs[0].finish_reason == "error" and said in bad.outputs[0].stop_reason
        assert re.fullmatch("[a-c]{4}", good.outputs[0].text)
        assert len(free.outputs[0].token_ids) == 9
        assert llm.stats().num_failed_steps == 0


def test_a_backend_that_is_not_there_ends_its_requests(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(backends: GrammarBackends, name: str) -> None:
        raise PluginError(f"there is no '{name}' here")

    monkeypatch.setattr(GrammarBackends, "load", missing)
    with LLM(model=str(tiny_llama), max_model_len=64) as llm:
        found = generate(llm, ["abc"], [SamplingParams(max_tokens=3)], ["a"])[0].outputs[0]
        assert found.finish_reason == "error" and "regex" in found.stop_reason


FORCING = r'\{"first name": "[ab]", "second name": "[ab]", "third name": "[ab]"\}'


@pytest.mark.parametrize("ahead", [False, True])
def test_forced_text_is_drafted_and_nothing_else(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    install(monkeypatch)
    asked = SamplingParams(temperature=0, max_tokens=60)
    with LLM(model=str(tiny_llama), max_model_len=128, async_scheduling=ahead) as llm:
        free, bound = generate(llm, ["abc", "xyz"], [asked] * 2, [None, FORCING])
        stats = llm.stats()
        core_of(llm).scheduler.check_integrity()
    assert re.fullmatch(FORCING, bound.outputs[0].text) and len(free.outputs[0].token_ids) > 1
    num_forced = len('{"first name": "') + 2 * len('", "second name": "')
    least = num_forced // 4 if ahead else num_forced // 2
    assert least < stats.spec_num_accepted_tokens < num_forced
    assert stats.spec_num_accepted_tokens == stats.spec_num_draft_tokens


def test_forced_text_never_goes_beyond_max_tokens(llm: LLM) -> None:
    for most in range(1, 12):
        found = answer(llm, FORCING, max_tokens=most)
        assert (found.finish_reason, len(found.token_ids)) == ("length", most)
        assert found.text == '{"first name": "'[:most]


def test_logprobs_are_of_the_raw_logits(llm: LLM) -> None:
    asked = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    free, bound = (output.outputs[0] for output in generate(llm, ["abc"] * 2, [asked] * 2, [None, "[xyz]"]))
    of_free = {token: entry.logprob for token, entry in free.logprobs[0].items()}
    of_bound = {token: entry.logprob for token, entry in bound.logprobs[0].items()}
    chosen = bound.token_ids[0]
    assert text_of([chosen]) in "xyz" and chosen != free.token_ids[0]
    assert {**of_free, chosen: of_bound[chosen]} == of_bound


def test_a_resumed_sequence_goes_on_in_its_grammar(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another engine has begun gives the same tokens here."""
    install(monkeypatch)
    with LLM(model=str(tiny_llama), max_model_len=128) as llm:
        params = SamplingParams(temperature=1.0, seed=4, max_tokens=30)
        whole = generate(llm, ["abc"], [params], [LOOP])[0].outputs[0].token_ids
        entry = with_grammar(llm, "again", "abc", params, compiled(LOOP))
        resumed = msgspec.structs.replace(entry.requests[0], resume=Resume(whole[:11]))
        core = core_of(llm)
        core.add([resumed])
        given: list[int] = []
        while core.has_work():
            for output in core.step().outputs:
                given += output.token_ids
        assert given == whole[11:]
