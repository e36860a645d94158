"""The fields of a beam search in a request, and those that do not go with them.

Owns: these rules. Never does: search. Called by: the bodies of completions and chats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import RequestError

REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(("stream", "echo", "explain", "receipt", "energy", "timings"), (False,)),
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "tools", "functions"), ([],)),
    **dict.fromkeys(("logit_bias", "vllm_xargs", "kv_transfer_params"), ({},)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "top_p"), (1,)),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), ()),
    **dict.fromkeys(("session", "prompt_logprobs", "prompt_embeds", "suffix"), ("",)),
    **dict.fromkeys(("thinking_token_budget", "max_thinking_tokens", "thinking_budget"), (-1,)),
    "top_k": (0, -1),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
}
"""Fields that a search of beams does not follow → their values that change nothing."""
DEFAULT_PENALTY: Final = 1.0


def check_beams(body: Any) -> None:
    """Refuse fields that beams do not go with, and fields of beams without any. Raises RequestError."""
    if not body.use_beam_search:
        if body.length_penalty not in (None, DEFAULT_PENALTY):
            raise RequestError(
                "length_penalty is of beams; set use_beam_search, or leave it out.", param="length_penalty"
            )
        return
    for name, neutral in REFUSED.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise RequestError(f"{name} does not go with use_beam_search; leave one of them out.", param=name)
    best_of = getattr(body, "best_of", None)
    if best_of is not None and best_of != (body.n or 1):
        raise RequestError(
            f"best_of is {best_of} and n is {body.n or 1}; with use_beam_search both are the beams.", param="n"
        )
