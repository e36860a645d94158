"""Keywords of vLLM's methods for features that are not supported.

Owns: the table of these keywords with the reason of each, and the errors about them. Never does: know a method. Called
by: `LLM`, `LLMEngine` and `AsyncLLM`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from core.api.errors import RequestError, nearest

NOT_SERVED: Mapping[str, str] = {
    "mm_processor_kwargs": "it is a key of a prompt with multi_modal_data, and an engine argument",
    "tokenization_kwargs": "texts are tokenized as the checkpoint says; pass token ids to do otherwise",
    "prompt_adapter_request": "prompt adapters are not available",
    "trace_headers": "nothing is traced",
    "reset_connector": "an instance does not exchange anything with others",
    "data_parallel_rank": "the prompt chooses the engine",
    "prompt_embeds": "it is a key of a prompt, {'prompt_embeds': a tensor}",
    "chat_template_content_format": "the template itself decides on the form of contents",
    "reasoning_ended": "the answer's format decides",
    "client_aggregator": "outputs are merged by `output_kind`",
    "start_engine_loop": "the engine starts with the first request",
    "stat_loggers": "statistics are read with `stats` and `get_metrics`",
    "log_stats": "leave it out, and give disable_log_stats among the engine arguments",
    "concurrency_limit": "the scheduler decides how many run at a time; give max_num_seqs among the engine arguments",
}
"""Keywords for which anything but None is refused, each with the reason."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "chat_template_content_format": ("auto",),
    "start_engine_loop": (True,),
    "reset_connector": (False,),
    "log_stats": (True, False),
    "disable_log_stats": (True, False),
    "disable_log_requests": (True, False),
    "enable_log_requests": (True, False),
}
"""Values that have no effect, or that the engine arguments decide."""


def refuse_keywords(
    options: Mapping[str, Any], method: Callable[..., Any], served: Collection[str] = frozenset()
) -> None:
    """Raise RequestError for a keyword with an effect, and TypeError for an unknown one.

    method: the method that the keywords belong to.
    served: names among the options that the method does use.
    """
    for name, value in options.items():
        if name in served:
            continue
        if name not in NOT_SERVED and name not in NEUTRAL:
            named = [each for each in inspect.signature(method).parameters if each not in ("self", "options")]
            known = [*named, *served, *NOT_SERVED]
            raise TypeError(f"{method.__name__} has no argument '{name}'.{nearest(name, known)}")
        if value is None or value in NEUTRAL.get(name, ()):
            continue
        reason = NOT_SERVED.get(name, "the engine arguments decide")
        raise RequestError(f"{name} is not served yet: {reason}; leave it out.", param=name)
