"""How a request is served, whatever it asks for.

Owns: `RequestTerms`. Never does: check or enforce them. Called by: the server and `LLM`, which make
them, and the parts that hand a request on to the engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core_frontend.api.explanation import Source
from core_frontend.recording import Recorder


@dataclass(frozen=True, slots=True)
class ExplainTerms:
    """The answer is to be explained.

    sources:    of the sampling values that are not defaults.
    first_turn: whether the prompt is known to go on with no conversation.
    grammar_s:  seconds of the preparation that its grammar took; None without one.
    tools:      how the model learns of the request's tools, where its chat template shows none; else empty.
    control_text: spellings of control tokens in the contents of messages, with their number.
    """

    sources: Mapping[str, Source] = field(default_factory=dict)
    first_turn: bool = False
    grammar_s: float | None = None
    tools: str = ""
    control_text: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """The terms of one request.

    priority:      lower runs first under the priority policy.
    user:          whose it is, for the fair policy.
    strict_length: `max_tokens` that do not fit the context are an error; otherwise output stops at the limit.
    timeout_s:     seconds until it ends with finish reason `timeout`; None: those of the configuration.
    arrival:       monotonic seconds from which on they count; None: now.
    marks_specials: special tokens stay in the text, and outputs tell where they are.
    tenant:        whose cached prefixes it may use; empty: those of nobody's.
    num_public_tokens: of its prompt, whose cached prefix all tenants share.
    explain:       None: nobody asks how the answer came about.
    recorder:      keeps what the request gets, and knows what it has got already; None: nobody does.
    gives_prompt:  its list of token ids is the engine's from now on; otherwise it is copied, since the caller may change it.
    """

    priority: int = 0
    user: str = ""
    strict_length: bool = False
    timeout_s: float | None = None
    arrival: float | None = None
    marks_specials: bool = False
    explain: ExplainTerms | None = None
    tenant: str = ""
    num_public_tokens: int = 0
    recorder: Recorder | None = None
    gives_prompt: bool = False

    def deadline(self, default_s: float) -> float:
        """Monotonic seconds at which the request ends; 0.0: never.

        default_s: seconds that a request has that names none; 0.0 is no limit.
        """
        limit_s = self.timeout_s or default_s
        if not limit_s:
            return 0.0
        begin = time.monotonic() if self.arrival is None else self.arrival
        return begin + limit_s

    def with_grammar(self, begin: float) -> RequestTerms:
        """The same, once the request has its grammar. begin: monotonic seconds at which it was asked for."""
        if self.explain is None:
            return self
        told = replace(self.explain, grammar_s=time.monotonic() - begin)
        return replace(self, explain=told)


LENIENT = RequestTerms()
"""The terms of `LLM`: output stops where the context ends."""

STRICT = RequestTerms(strict_length=True)
"""The terms of a server: asking for more tokens than fit is an error."""
