"""What the server needs of an engine and its tokenizer.

Owns: the two Protocols. Never does: implement them (`core.engine.async_engine.AsyncEngine` and `core.tokens.Tokenizer`
do). Called by: routes, generation, metrics; tests put a small fake in their place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from core.api.messages import SchedulerStats
from core.api.outputs import RequestOutput
from core.api.sampling_params import SamplingParams


class ServingTokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def special_tokens(self) -> dict[str, str]:
        """`bos_token`, `eos_token`, ... as chat templates know them."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's Jinja source."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of token ids."""
        ...

    def token_text(self, token_id: int) -> str:
        """The text of one token, with U+FFFD for parts of characters."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token."""
        ...


class ServingEngine(Protocol):
    """An engine that runs requests."""

    @property
    def tokenizer(self) -> ServingTokenizer:
        """The model's tokenizer."""
        ...

    @property
    def stats(self) -> SchedulerStats:
        """The latest state of the scheduler."""
        ...

    def generate(
        self,
        prompt: Mapping[str, Any],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        strict_length: bool = True,
        user: str = "",
        timeout_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request, of the kind that `params.output_kind` says. Closing it early aborts the request.

        user: whose it is. timeout_s: seconds until it ends with `timeout`; None: the server's own.

        Raises RequestError at the first step for a bad request, EngineDeadError when the engine is gone.
        """
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        ...

    async def check_health(self) -> None:
        """Raise EngineDeadError when the engine is gone, EngineStalledError when it has been silent for too long."""
        ...
