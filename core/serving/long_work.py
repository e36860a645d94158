"""Where long answers are put together.

Owns: the choice between the event loop and a thread. Called by: the completion routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from core.api.outputs import RequestOutput

LIGHT = 2000
"""Tokens and log-probabilities that take some milliseconds to write."""

T = TypeVar("T")


async def written(output: RequestOutput, work: Callable[[], T]) -> T:
    """The result of `work`, which writes `output`: at once when that is quick, else beside the streams of other clients."""
    if num_entries(output) <= LIGHT:
        return work()
    return await asyncio.to_thread(work)


def num_entries(output: RequestOutput) -> int:
    """Tokens and log-probabilities to write."""
    count = 0
    for completion in output.outputs:
        first = completion.logprobs[0] if completion.logprobs else ()
        count += len(completion.token_ids) * (1 + len(first))
    if output.prompt_logprobs is not None and len(output.prompt_logprobs) > 1:
        count += len(output.prompt_logprobs) * (1 + len(output.prompt_logprobs[1] or ()))
    return count
