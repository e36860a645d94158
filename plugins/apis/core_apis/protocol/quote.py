"""The answer of /v1/quote. Owns: its Structs. Called by: the quotes of a server, the OpenAPI document."""

from __future__ import annotations

import msgspec


class TimeRange(msgspec.Struct):
    """Seconds from the request's arrival, between which 90% of such times lie."""

    low: float
    high: float


class QuotedEnd(msgspec.Struct):
    """The end of all answers. tokens: of each answer."""

    tokens: int
    seconds: TimeRange


class QuotedPrompt(msgspec.Struct):
    """One prompt. kv_bytes: keys, values and states of the prompt and of its longest answer, for one choice."""

    prompt_tokens: int
    cached_tokens: int
    kv_bytes: int


class Quote(msgspec.Struct):
    """What a request would take if it came now.

    first_token, end_at_max_tokens, end_at_usual_length: null while the engine has computed too little to tell.
    would_be_refused: the sentence with which the server would refuse the request now; null: it would not.
    retry_after: seconds after which such a request should get in.
    learned_from: number of requests from which the widths were learned.
    """

    model: str
    prompts: list[QuotedPrompt]
    choices: int
    first_token: TimeRange | None
    end_at_max_tokens: QuotedEnd | None
    end_at_usual_length: QuotedEnd | None
    would_be_refused: str | None
    retry_after: int | None
    learned_from: int
    object: str = "quote"
