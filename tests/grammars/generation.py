"""Answers from random logits under a grammar: no model, a real vocabulary.

Owns: the sampler and the vocabulary. Never does: know JSON. Called by: `tests.grammars.prove` and its slice in the suite.
"""

from __future__ import annotations

import copy
import json
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.grammars.keywords import unhonoured
from core.grammars.lowering import lower
from tests.grammars.documents import is_valid
from tests.grammars.libraries import NAMES, Constrained, Refused, Vocabulary, table
from tests.tokens.tokenizers_for_tests import ours

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
    seconds:   of compiling, until the first mask.
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
def vocabulary() -> Vocabulary:
    """The tokens of the embedded default model."""
    tokenizer = ours("smollm2")
    silent = tokenizer.special_ids
    tokens = [b"" if index in silent else tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]
    assert tokenizer.eos_token_id is not None
    return Vocabulary(tokens, tokenizer.eos_token_id)


@cache
def closes() -> NDArray[np.bool_]:
    """For each token: whether it closes a part of JSON, or is the stop token."""
    found = np.array([token in CLOSERS for token in vocabulary().tokens])
    found[vocabulary().stop] = True
    return found


def attempt(schema: Any, seed: int, num_answers: int, names: tuple[str, ...] = NAMES) -> Outcome:
    """Serve a schema as a request would be: the first backend that honours it, then answers from random logits."""
    outcome = Outcome()
    for name in names:
        rewritten = copy.deepcopy(schema)
        lower(rewritten, table(name))
        reasons = unhonoured(rewritten, table(name))
        outcome.reasons.extend(f"{name}: {reason}" for reason in reasons)
        if not reasons and _serve(name, schema, rewritten, seed, num_answers, outcome):
            break
    return outcome


def _serve(name: str, schema: Any, rewritten: Any, seed: int, num_answers: int, outcome: Outcome) -> bool:
    for answer in range(num_answers):
        begin = time.perf_counter()
        try:
            constrained = Constrained(name, json.dumps(rewritten), vocabulary())
            constrained.allowed()
        except Refused as error:
            outcome.reasons.append(f"{name} itself: {error}")
            outcome.verdict = "library"
            return False
        outcome.seconds = time.perf_counter() - begin
        outcome.verdict, outcome.backend = "served", name
        text, ended = generate(constrained, np.random.default_rng([seed, answer]))
        if not ended:
            outcome.cut += 1
            continue
        outcome.stopped += 1
        if not is_valid(schema, text):
            outcome.wrong.append(text)
    return True


def generate(constrained: Constrained, random: np.random.Generator) -> tuple[str, bool]:
    """A text, and whether it ended by the stop token."""
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS:
        allowed = constrained.allowed()
        token = _chosen(allowed, len(tokens), random)
        assert constrained.accept(token), f"token {token} is in the mask and not accepted"
        if token == vocabulary().stop:
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
