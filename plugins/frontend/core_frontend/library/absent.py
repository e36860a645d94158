"""Methods of vLLM's classes that have no counterpart here.

Owns: their names with the reason of each. Never does: know what an engine can do. Called by: `LLM`, `LLMEngine` and
`AsyncLLM`, for names that they do not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from core.api.errors import nearest

ENGINES: Final = "one engine is started"
MEDIA: Final = "prompts carry no media, so nothing of them is kept"

ABSENT: Final[Mapping[str, str]] = {
    "reset_mm_cache": MEDIA,
    "reset_encoder_cache": MEDIA,
    "scale_elastic_ep": "the engines are those of the start; those of `core serve` come and go (`core scale`)",
    "has_unfinished_requests_dp": ENGINES,
    "do_log_stats": "a server and AsyncLLM log statistics by themselves; read them with `stats` or `get_metrics`",
    "set_tokenizer": "name it when the engine is made: tokenizer=...",
    "enqueue_chat": "call `chat`, or enqueue what `get_tokenizer().apply_chat_template` makes of the messages",
    "preprocess_chat": "`get_tokenizer().apply_chat_template` makes token ids of messages",
    "renderer": "`get_tokenizer().apply_chat_template` makes token ids of messages; prompts need no rendering",
    "input_processor": "prompts need no processing before `generate`",
    "get_vllm_config": "read `vllm_config`",
    "get_decoding_config": "read `vllm_config`",
    "get_input_preprocessor": "prompts need no processing before `generate`",
}
"""Why there is no such method or attribute, or its replacement."""


class AbsentNames:
    """A mixin whose AttributeError says why a name of vLLM's is missing, or which name is similar."""

    if not TYPE_CHECKING:  # a type checker would otherwise accept every name

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name in ABSENT:
                raise AttributeError(f"{kind} has no {name}: {ABSENT[name]}.")
            offered = [each for each in dir(type(self)) if not each.startswith("_")]
            raise AttributeError(f"'{kind}' object has no attribute '{name}'.{nearest(name, offered)}")
