"""The terms of a request: how it is served, independent of its parameters.

Owns: `RequestTerms`. Never does: check or enforce them. Called by: the server and `LLM`, which make them, and the code
that passes a request to the engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from core.api.adapters import AdapterFacts
from core_frontend.api.explanation import Source
from core_frontend.kv_transfer import KVTransfer
from core_frontend.recording import Recorder
from core_observers.receipts.issuer import Issuer


@dataclass(frozen=True, slots=True)
class ExplainTerms:
    """The facts for the explanation of an answer.

    sources:    of the sampling values that are not defaults.
    first_turn: whether the prompt is known to start a conversation.
    grammar_s:  seconds of the preparation that its grammar took; None without one.
    tools:      how the model learns of the request's tools, if its chat template renders none; else empty.
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
    user:          the user of the request, for the fair policy.
    strict_length: whether `max_tokens` that does not fit the context is an error; otherwise output stops at the limit.
    timeout_s:     seconds until it ends with finish reason `timeout`; None: those of the configuration.
    arrival:       monotonic seconds from which they count; None: now.
    marks_specials: whether special tokens stay in the text, and outputs give their positions.
    tenant:        the tenant whose cached prefixes it may use; empty: those without a tenant.
    num_public_tokens: number of prompt tokens whose cached prefix all tenants share.
    explain:       facts for the explanation; None: no explanation is wanted.
    recorder:      stores the request's outputs, and knows the earlier ones; None: they are not stored.
    adapter:       facts about the adapter that it uses; None: the base model.
    receipts:      makes the receipt of its answers; None: it gets none.
    flex:          whether it belongs to the batch class.
    energy:        whether its last output says what it took.
    transfer:      whether it leases its blocks to another engine, or fetches them from one; None: neither.
    gives_prompt:  whether the engine owns the list of token ids from now on; otherwise it is copied, since the caller
                   may change it.
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
    adapter: AdapterFacts | None = None
    receipts: Issuer | None = None
    gives_prompt: bool = False
    flex: bool = False
    energy: bool = False
    transfer: KVTransfer | None = None

    def deadline(self, default_s: float) -> float:
        """Return the monotonic seconds at which the request ends; 0.0: never.

        default_s: time limit in seconds of a request that sets none; 0.0 is no limit.
        """
        limit_s = self.timeout_s or default_s
        if not limit_s:
            return 0.0
        begin = time.monotonic() if self.arrival is None else self.arrival
        return begin + limit_s

    def with_grammar(self, begin: float) -> RequestTerms:
        """Return the terms for a request whose grammar is ready.

        begin: monotonic seconds at which its compilation was requested.
        """
        if self.explain is None:
            return self
        told = replace(self.explain, grammar_s=time.monotonic() - begin)
        return replace(self, explain=told)


LENIENT = RequestTerms()
"""The terms of `LLM`: output stops where the context ends."""

STRICT = RequestTerms(strict_length=True)
"""The terms of a server: asking for more tokens than fit is an error."""
