"""The backends that people use, on a tiny random model: every answer that stops validates, whatever happens around it."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from core import LLM, SamplingParams
from core.api.structured_outputs import CompiledGrammar, GrammarSpec
from core_runtime.executor.constraints.grammar_backends import GrammarBackends
from core_runtime.executor.model_runner import ModelRunner
from tests.inside import run_entries, with_grammar, worker_of

pytest.importorskip("xgrammar")

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "sizes", "city", "is_open"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{0,5}$"},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "city": {"enum": ["Berlin", "Paris", "Lima"]},
        "is_open": {"type": "boolean"},
    },
}
SPECS = [
    GrammarSpec("json_schema", json.dumps(SCHEMA), any_whitespace=False),
    GrammarSpec("regex", "(yes|no), [a-f]{3,9}"),
    GrammarSpec("choice", json.dumps(["red", "reddish", "green"])),
]
ASKED = [
    SamplingParams(temperature=1.0, seed=11, max_tokens=110, logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=110, repetition_penalty=1.1),
    SamplingParams(temperature=1.5, seed=12, max_tokens=110, top_p=0.9, n=2, ignore_eos=True, min_tokens=100),
]
PROMPTS = ["abcabcabcabcabcabc", "the quick brown fox", "z"]


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return request.param


def answers(path: Path, backend: str, alone: bool = False, **settings: object) -> list:
    with LLM(model=str(path), max_model_len=160, max_num_seqs=8, **settings) as llm:
        worker = worker_of(llm)
        backends = GrammarBackends(worker.config, worker.plugins, worker.spec.vocab_size)
        compiler = backends.load(backend)
        entries = []
        for number, spec in enumerate(SPECS):
            grammar = CompiledGrammar(backend, str(number), compiler.compile(spec))
            for prompt, asked in zip(PROMPTS, ASKED, strict=True):
                name = f"{number} {prompt}"
                entries.append(with_grammar(llm, name, prompt, asked, grammar))
        batches = [[entry] for entry in entries] if alone else [entries]
        found = []
        for batch in batches:
            found += run_entries(llm, batch)
        return [
            (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason)
            for output in found
            for choice in output.outputs
        ]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path, backend: str) -> Iterator[list]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRunner, "_propose_forced", lambda *arguments: None)
        yield answers(tiny_llama, backend, alone=True)


def test_answers_validate(expected: list) -> None:
    of_schema, of_regex, of_choice = expected[:4], expected[4:8], expected[8:]
    assert {reason for _, _, reason, _ in expected} == {"stop"}
    for text, *_ in of_schema:
        jsonschema.validate(json.loads(text), SCHEMA)
    for text, *_ in of_regex:
        jsonschema.validate(text, {"pattern": "^(yes|no), [a-f]{3,9}$"})
    for text, *_ in of_choice:
        assert text in ("red", "reddish", "green")


NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "adaptive": False,
}


@pytest.mark.parametrize(
    "settings",
    [{}, {"speculative_config": NGRAM}, {"num_gpu_blocks_override": 30}, {"async_scheduling": True}],
    ids=["in company", "drafts", "preempted", "planned ahead"],
)
def test_tokens_are_the_same(tiny_llama: Path, backend: str, expected: list, settings: dict[str, object]) -> None:
    assert answers(tiny_llama, backend, **settings) == expected
