"""Limits of the length of a sequence.

Owns: the limit that context and KV cache set together, and the sentences that explain it. Never does: end a sequence.
Called by: the scheduler.
"""

from __future__ import annotations

from core.api.messages import EngineRequest
from core.kv.manager import KVManager


class LengthLimits:
    """Maximum length of a sequence of one engine, owned by the scheduler's state.

    max_length: prompt plus output tokens: `max_model_len`, or less when the whole KV cache has less room. A sequence alone
                can always reach it.
    """

    def __init__(self, max_model_len: int, kv: KVManager) -> None:
        self.max_model_len = max_model_len
        self._num_slots = kv.capacity
        # The last token of a sequence is never computed and needs no room in the cache, hence the + 1.
        self.max_length = min(max_model_len, kv.capacity + 1)
        self._capacity = f"The KV cache holds {kv.capacity} tokens ({kv.pool.capacity} blocks of {kv.block_size})"

    def why_never(self, num_prompt_tokens: int, *, pools: bool = False) -> str:
        """Return why a prompt of that many tokens can never run, as a sentence, or an empty string.

        pools: a pooled prompt has no output, so it may fill the context.
        """
        if num_prompt_tokens == 0:
            return "The prompt is empty; expected at least one token."
        most = min(self.max_model_len, self._num_slots) if pools else self.max_length - 1
        if num_prompt_tokens <= most:
            return ""
        problem = f"The prompt has {num_prompt_tokens} tokens; expected at most {most}. "
        if self.max_length < self.max_model_len or (pools and most < self.max_model_len):
            return f"{problem}{self._capacity}: shorten the prompt or give the cache more memory."
        if pools:
            return f"{problem}The context holds no more: shorten the prompt."
        return f"{problem}The context holds {self.max_length} and one is left for the output: shorten the prompt."

    def why_not_resumed(self, request: EngineRequest) -> str:
        """Return why a resumed request can get no more tokens, as a sentence, or an empty string."""
        if request.resume is None:
            return ""
        num_given = len(request.resume.output_token_ids)
        most = request.params.max_tokens
        if most is not None and num_given >= most:
            return f"The request resumes after {num_given} tokens; expected fewer than its max_tokens, {most}."
        length = len(request.prompt_token_ids) + num_given
        if length < self.max_length:
            return ""
        return (
            f"The request resumes at {length} tokens (prompt and output); expected at most {self.max_length - 1}. "
            f"{self._capacity}, and the context {self.max_model_len} tokens."
        )

    def why_full(self, length: int) -> str | None:
        """Return why a sequence of that length had to end, when the cache rather than request or context is the reason."""
        if self.max_length < self.max_model_len and length >= self.max_length:
            return f"{self._capacity} and this sequence has filled it."
        return None
