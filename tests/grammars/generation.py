"""Answers from random logits under a grammar: no model, a real vocabulary.

Owns: the sampler and the vocabulary. Never does: know JSON. Called by: `tests.grammars.prove` and its slice in the suite.
"""

import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.api.structured_outputs import GrammarSpec
from core_grammars.contract import GrammarBackend, GrammarVocabulary
from core_grammars.vocabulary import grammar_vocabulary
from tests.grammars.documents import is_valid
from tests.grammars.libraries import NAMES, Constrained, Refused, load, reasons, spec_of
from tests.tokenizers.tokenizers_for_tests import ours

MOST_TOKENS = 300
PATIENCE = 60
"""Tokens after which the sampler prefers whatever closes something."""
HURRY = 0.2
"""How often it does so before."""
CLOSERS = (b'"', b"}", b"]", b'"}', b"]}", b"}}", b'"]')


@dataclass(slots=True)
class Outcome:
    """What became of one schema.

    verdict:   `served`, or `refused` (the reasons name keyword and place), or `library` (it refused by itself).
    backend:   the one that served it.
    reasons:   of every backend.
    seconds:   from the schema until the first mask, all backends together.
    stopped:   answers that ended by the stop token. cut: answers that reached MOST_TOKENS.
    wrong:     texts that ended and do not validate.
    """

    verdict: str = "refused"
    backend: str = ""
    reasons: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stopped: int = 0
    cut: int = 0
    wrong: list[str] = field(default_factory=list)


@cache
def vocabulary() -> GrammarVocabulary:
    """The tokens of the embedded default model."""
    tokenizer = ours("smollm2")
    assert tokenizer.eos_token_id is not None
    return grammar_vocabulary(tokenizer, tokenizer.vocab_size, [tokenizer.eos_token_id])


@cache
def of_model(name: str) -> GrammarBackend:
    """A backend for these tokens."""
    return load(name, vocabulary())


def constrained(name: str, spec: GrammarSpec) -> Constrained:
    """An answer of that model. Raises Refused."""
    return Constrained(of_model(name), vocabulary(), spec)


@cache
def closes() -> NDArray[np.bool_]:
    """For each token: whether it closes a part of JSON, or is the stop token."""
    found = np.array([token in CLOSERS for token in vocabulary().tokens])
    found[vocabulary().stop_ids] = True
    return found


def attempt(schema: Any, seed: int, num_answers: int, names: tuple[str, ...] = NAMES) -> Outcome:
    """Serve a schema as a request would be: the first backend that honours it, then answers from random logits."""
    outcome = Outcome()
    begin = time.perf_counter()
    spec = spec_of(schema)
    for name in names:
        found = reasons(name, spec)
        outcome.reasons.extend(f"{name}: {reason}" for reason in found)
        if found:
            continue
        try:
            constrained(name, spec).allowed()
        except Refused as error:
            outcome.reasons.append(f"{name} itself: {error}")
            outcome.verdict = "library"
            continue
        outcome.seconds = time.perf_counter() - begin
        outcome.verdict, outcome.backend = "served", name
        _serve(schema, seed, num_answers, outcome)
        break
    return outcome


def _serve(schema: Any, seed: int, num_answers: int, outcome: Outcome) -> None:
    for answer in range(num_answers):
        random = np.random.default_rng([seed, answer])
        text, ended = generate(constrained(outcome.backend, spec_of(schema)), random)
        if not ended:
            outcome.cut += 1
            continue
        outcome.stopped += 1
        if not is_valid(schema, text):
            outcome.wrong.append(text)


def generate(answer: Constrained, random: np.random.Generator) -> tuple[str, bool]:
    """A text, and whether it ended by the stop token."""
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS:
        allowed = answer.allowed()
        token = _chosen(allowed, len(tokens), random)
        assert answer.accept(token), f"token {token} is in the mask and not accepted"
        if token in vocabulary().stop_ids:
            return b"".join(vocabulary().tokens[each] for each in tokens).decode(), True
        tokens.append(token)
    return "", False


def _chosen(allowed: NDArray[np.int64], num_tokens: int, random: np.random.Generator) -> int:
    assert len(allowed), "a mask without a token"
    if num_tokens > PATIENCE or random.random() < HURRY:
        closing = allowed[closes()[allowed]]
        if len(closing):
            allowed = closing
    return int(allowed[random.integers(len(allowed))])
