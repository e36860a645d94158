"""Comparison of a receipt with the same request computed again.

Owns: the order in which fields, tokens, answer and seal are compared, and the sentence about the first difference. Never does:
compute. Called by: `core verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from core_commands.replay.computed import Computed
from core_observers.receipts.chain import BLOCK, first_other_block
from core_observers.receipts.facts import EngineFacts
from core_observers.receipts.issuer import ReceiptIssuer
from core_observers.receipts.receipt import ChoiceFact, Receipt, WeightsFact, seal_of

EQUAL, OTHER, UNCHECKED = 0, 1, 2
"""Exit codes: equal to the bit; a difference; cannot be checked."""
PLACES: Final = ("numerics", "instruction_set")
"""Fields without which no bits can be compared."""
FACTS: Final = ("version", "tokenizer", "template", "plugins")
VOLATILE: Final = frozenset(
    {
        "id",
        "created",
        "created_at",
        "completed_at",
        "usage",
        "receipt",
        "opening",
        "explain",
        "timings",
        "energy",
        "system_fingerprint",
    }
    | {"tool_call_id", "call_id", "model"}
)
"""Fields of an answer that differ each time it is computed, or say nothing of its content."""


@dataclass(frozen=True)
class Verdict:
    """code: exit code. sentence: what was found."""

    code: int
    sentence: str


def check_place(receipt: Receipt, facts: EngineFacts, skipped: Sequence[str]) -> Verdict | None:
    """Return why the receipt cannot be checked with this engine, or how the engine differs; None: nothing hinders it."""
    for name in PLACES:
        said, here = getattr(receipt, name), getattr(facts, name)
        if said != here:
            return Verdict(UNCHECKED, f"{name}: the receipt says {said!r}, this engine computes with {here!r}.")
    for name in FACTS:
        said, here = getattr(receipt, name), getattr(facts, name)
        if said != here and name not in skipped:
            return Verdict(OTHER, f"{name}: the receipt says {_other(said, here)}.")
    return None


def check_weights(receipt: Receipt, whole: WeightsFact, sampled: str) -> Verdict | None:
    """Compare the weights. whole: of the files here. sampled: digest of their samples."""
    said = receipt.weights
    if said.update:
        return Verdict(UNCHECKED, f"weights: they were replaced while the server ran (version {said.update!r}).")
    if said.kind == "unknown" or whole.kind == "unknown":
        return Verdict(UNCHECKED, "weights: they lie in no files that could be compared.")
    here = whole.digest if said.kind == "whole" else sampled
    if said.digest != here:
        return Verdict(OTHER, f"weights: the receipt says {said.digest[:16]} ({said.kind}), here they are {here[:16]}.")
    return None


def check_tokens(receipt: Receipt, computed: Computed, issuer: ReceiptIssuer, opening: bytes) -> Verdict | None:
    """Compare the prompt, the sampling values and every answer with what was computed."""
    mine = issuer.receipt(computed.request, computed.answers, opening)
    sealed = seal_of(receipt, opening) == receipt.seal
    block = first_other_block(receipt.prompt, mine.prompt)
    if block == 0 and not sealed:
        return Verdict(OTHER, "opening: this key does not open the receipt, or the prompt and the seal are others.")
    if receipt.num_prompt_tokens != mine.num_prompt_tokens or block is not None:
        return Verdict(OTHER, f"prompt: {_place(block, receipt.num_prompt_tokens, mine.num_prompt_tokens)}")
    for name in ("adapter", "inputs"):
        if getattr(receipt, name) != getattr(mine, name):
            return Verdict(
                OTHER, f"{name}: the receipt says {getattr(receipt, name)!r}, computed {getattr(mine, name)!r}."
            )
    for name in sorted({*receipt.sampling, *mine.sampling}):
        said, here = receipt.sampling.get(name), mine.sampling.get(name)
        if said != here:
            return Verdict(OTHER, f"sampling.{name}: the receipt says {said!r}, the request means {here!r}.")
    if [choice.index for choice in receipt.choices] != [choice.index for choice in mine.choices]:
        return Verdict(OTHER, f"choices: the receipt has {len(receipt.choices)}, the request {len(mine.choices)}.")
    for said_choice, here_choice in zip(receipt.choices, mine.choices, strict=True):
        verdict = _check_choice(said_choice, here_choice)
        if verdict is not None:
            return verdict
    if not sealed:
        return Verdict(
            OTHER, "seal: the receipt was changed, in a field that is not computed again (created, or the seal)."
        )
    return None


def check_answer(said: Any, computed: Any) -> Verdict | None:
    """Compare the content of an answer that the client kept with the one computed."""
    for path, left, right in differences(said, computed):
        return Verdict(OTHER, f"answer{path}: the client's is {left}, computed {right}.")
    return None


def differences(said: Any, computed: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, said, computed) of all leaves that differ, apart from volatile fields."""
    if isinstance(said, Mapping) and isinstance(computed, Mapping):
        for name in sorted({*said, *computed} - VOLATILE):
            if said.get(name) is not None or computed.get(name) is not None:
                yield from differences(said.get(name), computed.get(name), f"{path}.{name}")
    elif isinstance(said, list) and isinstance(computed, list) and len(said) == len(computed):
        for index, (left, right) in enumerate(zip(said, computed, strict=True)):
            yield from differences(left, right, f"{path}[{index}]")
    elif said != computed:
        yield path, _short(said, computed), _short(computed, said)


def _check_choice(said: ChoiceFact, here: ChoiceFact) -> Verdict | None:
    block = first_other_block(said.marks, here.marks)
    name = f"choice {said.index}"
    if block is not None:
        return Verdict(OTHER, f"{name}: {_place(block, said.num_tokens, here.num_tokens)}")
    if said.num_tokens != here.num_tokens:
        return Verdict(OTHER, f"{name}: the receipt says {said.num_tokens} tokens, computed {here.num_tokens}.")
    if said.finish_reason != here.finish_reason:
        return Verdict(
            OTHER, f"{name}: the receipt says it ended by {said.finish_reason}, computed {here.finish_reason}."
        )
    if said.end != here.end:
        return Verdict(OTHER, f"{name}: the end of its chain differs, its marks do not.")
    return None


def _place(block: int | None, said: int, here: int) -> str:
    """Say where token ids differ first."""
    if block is None or block * BLOCK >= min(said, here):
        return f"the receipt says {said} tokens, computed {here}."
    return (
        f"the first token that differs is one of {block * BLOCK} to {min(block * BLOCK + BLOCK, max(said, here)) - 1}."
    )


def _other(said: Any, here: Any) -> str:
    """Show two values; of lists the rows that differ."""
    if isinstance(said, list) and isinstance(here, list):
        left = [row for row in said if row not in here]
        right = [row for row in here if row not in said]
        return f"{'; '.join(left) or 'nothing'}, here it is {'; '.join(right) or 'nothing'}"
    return f"{said!r}, here it is {here!r}"


def _short(value: Any, other: Any) -> str:
    """Show a value; of a long text the part where it leaves the other one."""
    if isinstance(value, str) and isinstance(other, str):
        start = next((i for i, pair in enumerate(zip(value, other, strict=False)) if pair[0] != pair[1]), 0)
        start = start or min(len(value), len(other))
        return f"{value[max(start - 10, 0) : start + 30]!r} (from character {max(start - 10, 0)})"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
