"""Answers of two engines to recorded requests.

Owns: `Recorded` (one request as it is compared), `RecordDifference` and `Comparison`, and comparing one request. Never does:
start an engine, or write a report. Called by: `core diff`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from core.api.errors import CoreError
from core_apis.traffic.records import TrafficRecord, unpacked
from core_commands.replay.computed import Computed
from core_commands.replay.engine import SCORES, ReplayEngine
from core_commands.replay.speed import Speed
from core_commands.replay.tokens import TokenDifference, all_differences, first_index
from core_commands.replay.values import ValueDifference, shortened, value_differences
from core_observers.receipts.issuer import Answers, inputs_of

MOST_TOKENS: Final = 32
"""Tokens that are looked for in one answer; the first ones say enough."""


@dataclass
class Recorded:
    """One request with the left side's answers.

    prompts: their token ids. seeds: of each prompt.
    adapter, inputs: digests of the adapter, and of pictures and embeddings in each prompt; empty: there are none.
    answer: as the API writes it; None: not known yet. num_bytes: of the record.
    """

    number: int
    path: str
    body: dict[str, Any]
    prompts: list[list[int]]
    answers: list[Answers]
    seeds: list[int]
    adapter: str = ""
    inputs: list[str] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    num_bytes: int = 0

    @classmethod
    def of(cls, number: int, record: TrafficRecord) -> Recorded:
        """Make it of a record. Raises msgspec.DecodeError for a body that is no JSON object."""
        body = msgspec.json.decode(record.body, type=dict[str, Any])
        plain = {name: value for name, value in body.items() if name not in SCORES}
        prompts = [unpacked(prompt.token_ids) for prompt in record.prompts]
        answers: list[Answers] = []
        for prompt in record.prompts:
            answers.append([(row.index, unpacked(row.token_ids), row.finish_reason) for row in prompt.choices])
        receipts = [prompt.issued.receipt for prompt in record.prompts]
        seeds = [int(receipt.sampling["seed"]) for receipt in receipts]
        adapter = next((receipt.adapter for receipt in receipts if receipt.adapter), "")
        inputs = [receipt.inputs for receipt in receipts]
        num_bytes = len(record.body) + sum(len(prompt.token_ids) for prompt in record.prompts)
        num_bytes += sum(len(row.token_ids) for prompt in record.prompts for row in prompt.choices)
        return cls(number, record.path, plain, prompts, answers, seeds, adapter, inputs, num_bytes=num_bytes)

    @property
    def num_tokens(self) -> int:
        """Return the number of answer tokens."""
        return sum(len(tokens) for answers in self.answers for _, tokens, _ in answers)

    def answered(self, answer: dict[str, Any], computed: Sequence[Computed]) -> None:
        """Replace the recorded answers by those of another engine, which is the left side."""
        self.answer = answer
        self.answers = [one.answers for one in computed]
        self.prompts = [list(one.request.prompt_token_ids) for one in computed]
        self.adapter = adapter_of(computed)
        self.inputs = [inputs_of(one.request) for one in computed]

    def given(self) -> list[list[list[int]]]:
        """Return the tokens of each prompt's choices as drafts."""
        return [[list(tokens) for _, tokens, _ in sorted(answers, key=lambda row: row[0])] for answers in self.answers]


@dataclass
class RecordDifference:
    """The differences of one request.

    prompt:  why the prompts differ; empty: they are the same tokens.
    causes:  what else is not the same on both sides: the adapter's numbers, or pictures. Alone it is no difference.
    tokens:  places where the right side would go another way, with (prompt, choice) of each.
    values:  calls, JSON values and texts that differ.
    problem: why something could not be compared; empty: all was.
    """

    number: int
    path: str
    question: str
    prompt: str = ""
    tokens: list[tuple[int, int, TokenDifference]] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    problem: str = ""
    causes: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.prompt or self.tokens or self.values or self.problem)

    @property
    def severity(self) -> tuple[int, float]:
        """Return what the report is sorted by: the worst kind first, then the earliest token."""
        outcomes = {(value.kind, value.outcome) for value in self.values}
        broken = any(outcome == "broken" for _, outcome in outcomes)
        other = any(kind != "text" and outcome == "other value" for kind, outcome in outcomes)
        rank = 0 if broken else 1 if other else 2 if self.problem else 3 if self.prompt else 4
        first = min((difference.index for _, _, difference in self.tokens), default=0)
        return rank, first


@dataclass
class Comparison:
    """All requests.

    seconds, num_tokens: of the right side's computing. planned: bytes of memory that each of our engines plans, by side.
    causes: requests with another `adapter` or other `inputs`. speed: of both sides in turns, without known tokens.
    """

    left: str
    right: str
    num_requests: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    rows: list[RecordDifference] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    planned: dict[str, int] = field(default_factory=dict)
    speed: Speed = field(default_factory=Speed)

    def count(self, kind: str) -> int:
        """Return the number of requests that differ: in a `token`, or in a `tool_call` or `json` value."""
        if kind == "token":
            return sum(1 for row in self.rows if row.tokens or row.prompt)
        values = [
            [value for value in row.values if value.kind == kind and value.outcome != "same value"] for row in self.rows
        ]
        return sum(1 for found in values if found)

    def worst(self) -> list[RecordDifference]:
        """Return the requests that differ, worst first."""
        return sorted(self.rows, key=lambda row: row.severity)


async def compare(engine: ReplayEngine, record: Recorded, comparison: Comparison) -> None:
    """Compute one request on the right side, and add how it differs."""
    row = RecordDifference(record.number, record.path, question_of(record.body))
    comparison.num_requests += 1
    begin = time.perf_counter()
    try:
        body = await engine.renamed(record.body, adapted=bool(record.adapter))
        answer, computed = await engine.compute(record.path, body, record.given(), record.seeds)
        comparison.seconds += time.perf_counter() - begin
        comparison.num_tokens += record.num_tokens
        row.prompt = _prompt(record, computed)
        row.causes = _causes(record, computed, comparison.causes)
        if not row.prompt:
            row.tokens, row.problem = await _tokens(engine, record, computed)
        left = record.answer
        if left is None and row.prompt:
            row.problem = (
                "Its text is not known: the prompt has other tokens here; give the recording engine: --left ARGUMENTS."
            )
        elif left is None and (row.tokens or row.problem):
            left = await engine.written(record.path, body, record.answers)
        if left is not None:
            row.values = value_differences(record.body, left, answer)
    except CoreError as error:
        row.problem = str(error)
    if not row.is_equal:
        comparison.rows.append(row)


def compare_texts(record: Recorded, answer: dict[str, Any], comparison: Comparison) -> None:
    """Compare with the answer of a server whose tokens are not known."""
    comparison.num_requests += 1
    comparison.num_tokens += record.num_tokens
    row = RecordDifference(record.number, record.path, question_of(record.body))
    assert record.answer is not None, "the left side has written it"
    row.values = value_differences(record.body, record.answer, answer)
    row.tokens = list(_told_tokens(record, answer))
    if not row.is_equal:
        comparison.rows.append(row)


def _told_tokens(record: Recorded, answer: dict[str, Any]) -> Iterator[tuple[int, int, TokenDifference]]:
    """Yield the first token of each choice that differs, where a server tells the tokens of its answer."""
    choices = answer.get("choices")
    told = [row.get("token_ids") for row in choices] if isinstance(choices, list) else []
    for (prompt, choice, known), tokens in zip(_answers(record), told, strict=False):
        index = first_index(known, tokens) if isinstance(tokens, list) else None
        if index is not None:
            pair = [side[index] if index < len(side) else None for side in (known, tokens)]
            yield prompt, choice, TokenDifference(index, pair[0], pair[1])


def question_of(body: dict[str, Any]) -> str:
    """Return the beginning of what a body asks, for people."""
    asked = body.get("messages") or body.get("prompt") or ""
    last = asked[-1] if isinstance(asked, list) and asked else asked
    text = last.get("content") if isinstance(last, dict) else last
    if isinstance(text, list) and text and all(isinstance(part, dict) for part in text):
        # A picture is an address, or a megabyte of base64: its kind says more.
        text = " ".join(_shown_part(part) for part in text)
    return shortened(text if isinstance(text, str) else msgspec.json.encode(text).decode(), 200)


def adapter_of(computed: Sequence[Computed]) -> str:
    """Return the digest of the adapter that computed a request; empty: the base model did."""
    return next((one.request.adapter for one in computed if one.request.adapter), "")


def _shown_part(part: dict[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type')}]"


def _causes(record: Recorded, computed: Sequence[Computed], counts: Counter[str]) -> list[str]:
    """Return what else differs between both sides, and count it."""
    found = []
    adapter = adapter_of(computed)
    if adapter != record.adapter:
        sides = [digest[:16] or "none" for digest in (record.adapter, adapter)]
        found.append(f"The adapter is another one: {sides[0]} on the left, {sides[1]} on the right.")
        counts["adapter"] += 1
    other = [
        str(index)
        for index, (left, one) in enumerate(zip(record.inputs, computed, strict=False))
        if left != inputs_of(one.request)
    ]
    if other:
        found.append(f"Pictures or embeddings are other ones, in prompt {', '.join(other)}.")
        counts["inputs"] += 1
    return found


def _prompt(record: Recorded, computed: Sequence[Computed]) -> str:
    mine = [list(one.request.prompt_token_ids) for one in computed]
    if mine == record.prompts:
        return ""
    lengths = [list(map(len, side)) for side in (record.prompts, mine)]
    return f"The prompt is other tokens: {lengths[0]} on the left, {lengths[1]} on the right."


async def _tokens(
    engine: ReplayEngine, record: Recorded, computed: Sequence[Computed]
) -> tuple[list[tuple[int, int, TokenDifference]], str]:
    found: list[tuple[int, int, TokenDifference]] = []
    problems = []
    for prompt, choice, known in _answers(record):
        rows, problem = await all_differences(engine, computed[prompt], choice, known, MOST_TOKENS)
        found += [(prompt, choice, row) for row in rows]
        problems += [problem] if problem else []
    return found, " ".join(problems)


def _answers(record: Recorded) -> Iterator[tuple[int, int, Sequence[int]]]:
    for prompt, answers in enumerate(record.answers):
        for choice, tokens, _ in answers:
            yield prompt, choice, tokens
