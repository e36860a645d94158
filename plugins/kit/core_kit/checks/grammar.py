"""Checks of grammar backends: masks and tokens agree, rollbacks lose nothing, and nothing raises.

Owns: the checks. Never does: judge the interpretation of a grammar.
Called by: `core_kit.suite`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.api.errors import RequestError
from core.api.structured_outputs import GrammarSpec
from core_kit.case import Failure, Skipped, Subject
from core_kit.fixtures.grammar_vocabulary import PADDING, STOP, WORDS

SAMPLES: tuple[tuple[GrammarSpec, str], ...] = (
    (GrammarSpec("choice", json.dumps(["yes", "no", 'so "so"', "ja, natürlich"])), "ja, natürlich"),
    (GrammarSpec("regex", "(ab|c)+d"), "abccabd"),
    (GrammarSpec("json_object"), '{"a": [1, true, "x"]}'),
    (
        GrammarSpec(
            "json_schema",
            '{"type":"object","properties":{"a":{"type":"boolean"},"b":{"enum":["yes","no"]}},"required":["a","b"]}',
        ),
        '{"a": true, "b": "no"}',
    ),
    (GrammarSpec("ebnf", 'root ::= "a" ("b" | "c")* "d"'), "abcbd"),
    (GrammarSpec("lark", 'start: "a" ("b" | "c")* "d"'), "abcbd"),
    (
        GrammarSpec("structural_tag", '{"type":"structural_tag","format":{"type":"const_string","value":"yes"}}'),
        "yes",
    ),
)
"""For each kind, a grammar and an answer that matches it."""


def serves_something(subject: Subject) -> None:
    """It serves one kind of grammar at least, and says so without loading anything."""
    if not _served(subject):
        raise Failure("core_supports has reasons against every kind of grammar")


def takes_what_follows(subject: Subject) -> None:
    """An answer that follows the grammar is accepted, ends with a stop token, and not before."""
    for spec, text in _served(subject):
        matcher = _matcher(subject, spec)
        for byte in text.encode():
            _expect(spec, byte in _allowed(matcher), f"the mask forbids {bytes([byte])!r} in {text!r}")
            _expect(spec, matcher.accept(byte), f"{bytes([byte])!r} of {text!r} is not accepted")
            _expect(spec, not matcher.is_terminated, "is_terminated holds before a stop token came")
        _expect(spec, STOP in _allowed(matcher), f"the mask forbids the end behind {text!r}")


def masks_agree(subject: Subject) -> None:
    """Tokens are accepted exactly where the mask allows them; special and padding ones never are."""
    source = random.Random(1)
    for spec, _ in _served(subject):
        matcher = _matcher(subject, spec)
        for _ in range(24):
            allowed = _allowed(matcher)
            _expect(
                spec, not allowed & {257, PADDING}, "the mask allows a special token, or one that stands for nothing"
            )
            others = source.sample(range(PADDING + 1 + len(WORDS)), 12)
            for token in others:
                taken = matcher.accept(token)
                if taken:
                    matcher.rollback(1)
                _expect(spec, taken == (token in allowed), f"mask and accept disagree on token {token}")
            texts = sorted(allowed - {STOP})
            if not texts:
                break
            matcher.accept(source.choice(texts))


def takes_back(subject: Subject) -> None:
    """After a rollback the masks are those of before."""
    for spec, text in _served(subject):
        matcher = _matcher(subject, spec)
        masks = []
        for byte in text.encode():
            masks.append(_allowed(matcher))
            matcher.accept(byte)
        matcher.rollback(len(masks))
        for place, byte in enumerate(text.encode()):
            _expect(spec, _allowed(matcher) == masks[place], "the mask is another one after a rollback")
            matcher.accept(byte)


def matchers_are_apart(subject: Subject) -> None:
    """Matchers of the same data do not touch each other."""
    for spec, text in _served(subject):
        backend = subject.loaded
        data = backend.compile(spec)
        first, second = backend.matcher(data), backend.matcher(data)
        at_start = _allowed(second)
        first.accept(text.encode()[0])
        _expect(spec, _allowed(second) == at_start, "a token of one matcher changed another one")


def wrong_ones_are_refused(subject: Subject) -> None:
    """A grammar that is none is refused with a RequestError."""
    broken = (
        GrammarSpec("regex", "(ab"),
        GrammarSpec("ebnf", "root ::= missing"),
        GrammarSpec("lark", "start: MISSING"),
    )
    for spec in broken:
        if subject.manifest.call("core_supports", query=spec):
            continue
        try:
            subject.loaded.compile(spec)
        except RequestError:
            continue
        raise Failure(f"compile took {spec.text!r} for a {spec.kind}; raise RequestError, which says what is wrong")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    serves_something,
    takes_what_follows,
    masks_agree,
    takes_back,
    matchers_are_apart,
    wrong_ones_are_refused,
)


def _served(subject: Subject) -> list[tuple[GrammarSpec, str]]:
    """Return the samples that the plugin does not refuse. Raises Skipped when a library is missing."""
    found: list[tuple[GrammarSpec, str]] = []
    for spec, text in SAMPLES:
        reasons = subject.manifest.call("core_supports", query=spec)
        if any(reason.code == "missing_library" for reason in reasons):
            raise Skipped(str(reasons[0]))
        if not reasons:
            found.append((spec, text))
    return found


def _matcher(subject: Subject, spec: GrammarSpec) -> Any:
    backend = subject.loaded
    return backend.matcher(backend.compile(spec))


def _allowed(matcher: Any) -> set[int]:
    """Return the tokens that a mask allows."""
    size = PADDING + 1 + len(WORDS)
    words: NDArray[np.int32] = np.full((size + 31) // 32, 0x5A5A5A5A, np.int32)
    if not matcher.fill(words):
        return set(range(size))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:size]).tolist())


def _expect(spec: GrammarSpec, holds: bool, sentence: str) -> None:
    if not holds:
        raise Failure(f"{spec.kind} {spec.text}: {sentence}")
