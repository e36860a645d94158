"""The issuer: it makes the receipts of finished requests.

Owns: `ReceiptIssuer`, and which values of a request a receipt states. Never does: decide who gets a receipt, or keep
one. Called by: the output processor, when a request with an issuer among its terms has ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

import msgspec

from core.api.messages import EngineRequest
from core_observers.receipts.chain import Chain
from core_observers.receipts.facts import EngineFacts
from core_observers.receipts.receipt import ChoiceFact, IssuedReceipt, Receipt, WeightsFact, digest_of, seal_of
from core_observers.receipts.signing import SigningKey

OPENING_BYTES: Final = 32
SHOWN: Final = (
    *(
        "output_kind",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "logprobs",
        "prompt_logprobs",
    ),
    *("include_stop_str_in_output", "truncate_prompt_tokens"),
    *("allowed_token_ids", "structured_outputs", "seed", "extra_args"),
)
"""Parameters that decide no token, or that are stated in another form."""
GIVEN: Final = "given_token_ids"
"""The argument of drafts that are given. Drafts decide no token."""

Answers = Sequence[tuple[int, Sequence[int], str | None]]
"""(choice, token ids, finish reason) of each answer."""


class Issuer(Protocol):
    """Whatever receives finished requests whose terms name it."""

    def issue(self, request: EngineRequest, answers: Answers) -> IssuedReceipt | None:
        """Return the receipt of a request that has ended, or None. request: one of its choices."""
        ...


class ReceiptIssuer:
    """Makes receipts for one engine.

    facts:   of the engine.
    weights: returns what is known of its weights now.
    key:     signs receipts; None: they are not signed.
    """

    def __init__(self, facts: EngineFacts, weights: Callable[[], WeightsFact], key: SigningKey | None = None) -> None:
        self.facts = facts
        self._weights = weights
        self._key = key

    def issue(self, request: EngineRequest, answers: Answers) -> IssuedReceipt:
        """Return the receipt of a finished request, as `Issuer` does, with a new opening."""
        opening = secrets.token_bytes(OPENING_BYTES)
        receipt = self.receipt(request, answers, opening)
        receipt.seal = seal_of(receipt, opening)
        if self._key is not None:
            receipt.signature = self._key.sign(receipt.plain(sealed=True))
        return IssuedReceipt(receipt, opening.hex())

    def receipt(self, request: EngineRequest, answers: Answers, opening: bytes) -> Receipt:
        """Return the receipt without seal and signature."""
        prompt = Chain.opened(opening).extend(request.prompt_token_ids)
        choices = []
        for index, token_ids, reason in sorted(answers, key=lambda answer: answer[0]):
            chain = prompt.choice(index).extend(token_ids)
            choices.append(ChoiceFact(index, len(token_ids), reason, chain.marks, chain.end))
        return Receipt(
            **asdict(self.facts),
            weights=self._weights(),
            adapter=request.adapter,
            sampling=sampling_of(request),
            inputs=inputs_of(request),
            num_prompt_tokens=len(request.prompt_token_ids),
            prompt=prompt.marks,
            choices=choices,
            created=int(time.time()),
        )


def sampling_of(request: EngineRequest) -> dict[str, Any]:
    """Return the values of a request that decide its tokens: those that are not defaults, and the seed."""
    plain: Mapping[str, Any] = msgspec.to_builtins(request.params, str_keys=True)
    values = {name: _short(value) for name, value in plain.items() if name not in SHOWN}
    values["seed"] = request.seed
    extra = {name: value for name, value in (request.params.extra_args or {}).items() if name != GIVEN}
    if extra:
        values["extra_args"] = digest_of(extra)
    if request.stop_token_ids:
        values["stop_token_ids"] = _short(sorted(request.stop_token_ids))
    if request.allowed_ids:
        values["allowed_token_ids"] = digest_of(request.allowed_ids.hex())
    if request.grammar is not None:
        values["structured_outputs"] = request.grammar.key
    return values


def _short(value: Any) -> Any:
    """Return a value that is stated as it is, or its digest: texts and lists may be long, or private."""
    return value if isinstance(value, int | float | bool) or value is None else digest_of(value)


def inputs_of(request: EngineRequest) -> str:
    """Return a digest of everything in the prompt besides its token ids."""
    if not request.media and not request.prompt_embeds:
        return ""
    places = [[item.start, item.stop, item.digest] for item in request.media]
    return digest_of([places, digest_of(request.prompt_embeds.hex())])
