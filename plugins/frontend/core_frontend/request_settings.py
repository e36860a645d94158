"""The facts about a request that are known before it runs, for the explanation of its answer.

Owns: `RequestSettings`: sampling values with their sources, and limits. Never does: explain (`core_frontend.explaining` does).
Called by: the input processor.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.api.sampling_params import SamplingParams
from core_frontend.api.explanation import SamplingValue, Source
from core_frontend.api.sampling_fields import field_names
from core_frontend.request_terms import ExplainTerms, RequestTerms

SCALARS = field_names(lambda field: field.explained == "value")
LISTS = field_names(lambda field: field.explained == "count")
"""Parameters that are reported by their number of entries, if there are any."""


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The limit on the answer's length.

    name:       `max_tokens`, `max_new_tokens` or `max_model_len`.
    num_tokens: output tokens that it allows.
    source:     of the number.
    """

    name: str
    num_tokens: int
    source: Source


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """The facts about one request before it runs.

    begin:      monotonic seconds of its arrival.
    length:     the limit on the answer's length.
    sampling:   its sampling values.
    first_turn: whether it is known to start a conversation, so that no history can have changed.
    kept:       `truncate_prompt_tokens`.
    num_cut:    prompt tokens that were dropped for it.
    timeout_s:  time limit in seconds; 0.0: none.
    grammar_s:  seconds that its grammar took; None without one.
    tools:      see `ExplainTerms`.
    control_text: spellings of control tokens in the contents of messages, with their number.
    """

    begin: float
    length: LengthLimit
    sampling: dict[str, SamplingValue] = field(default_factory=dict)
    first_turn: bool = False
    kept: int | None = None
    num_cut: int = 0
    timeout_s: float = 0.0
    grammar_s: float | None = None
    tools: str = ""
    control_text: Mapping[str, int] = field(default_factory=dict)


def request_settings(
    params: SamplingParams,
    terms: RequestTerms,
    explain: ExplainTerms,
    length: LengthLimit,
    seed: int,
    num_cut: int,
    deadline: float,
) -> RequestSettings:
    """Gather the facts that the input processor knows. deadline: monotonic seconds; 0.0: none."""
    begin = time.monotonic() if terms.arrival is None else terms.arrival
    return RequestSettings(
        begin=begin,
        length=length,
        sampling=sampling_values(params, explain.sources, length, seed),
        first_turn=explain.first_turn,
        kept=params.truncate_prompt_tokens,
        num_cut=num_cut,
        timeout_s=deadline - begin if deadline else 0.0,
        grammar_s=explain.grammar_s,
        tools=explain.tools,
        control_text=explain.control_text,
    )


def sampling_values(
    params: SamplingParams, sources: Mapping[str, Source], length: LengthLimit, seed: int
) -> dict[str, SamplingValue]:
    """Return the values of a request. sources: of those that are not defaults. seed: the one that is used."""
    values: dict[str, SamplingValue] = {}
    for name in SCALARS:
        values[name] = SamplingValue(getattr(params, name), sources.get(name, "default"))
    values["max_tokens"] = SamplingValue(length.num_tokens, length.source)
    values["seed"] = SamplingValue(seed, "drawn" if params.seed is None else "request")
    for name in LISTS:
        entries = params.stop_strings if name == "stop" else getattr(params, name)
        if entries:
            values[name] = SamplingValue(len(entries), sources.get(name, "default"))
    return values
