"""The log of answers: a line for each choice when it ends, and for each piece of it on request.

Owns: those lines. Never does: change an output. Called by: `PromptRun`, with `--enable-log-outputs`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from core_apis.answers.prompt_output import PromptOutput
from core_frontend.api.outputs import CompletionOutput, RequestOutput

logger = logging.getLogger("core_apis")


class LoggedChoice:
    """What is known of one choice: the beginning of its text, up to the limit of the log, and its number of tokens."""

    def __init__(self) -> None:
        self.text = ""
        self.num_tokens = 0

    def add(self, output: CompletionOutput, limit: int | None) -> None:
        """Take in a piece of the choice, or all of it."""
        if limit is None or len(self.text) < limit:
            self.text = (self.text + output.text)[:limit]
        self.num_tokens += len(output.token_ids)


async def log_outputs(
    outputs: AsyncGenerator[PromptOutput, None], answer_id: str, limit: int | None, *, pieces: bool
) -> AsyncGenerator[PromptOutput, None]:
    """Yield the outputs of a request, pieces of answers or whole ones, and log them.

    limit:  most characters of a text in the log; None: all.
    pieces: whether each piece is logged as well.
    """
    choices: dict[tuple[int, int], LoggedChoice] = {}
    async with aclosing(outputs):
        async for index, output in outputs:
            for completion in output.outputs if isinstance(output, RequestOutput) else ():  # vectors have no text
                choice = choices.setdefault((index, completion.index), LoggedChoice())
                choice.add(completion, limit)
                name = f"{answer_id} ({index}, {completion.index})" if index or completion.index else answer_id
                if pieces and completion.text:
                    logger.info("Piece of answer %s: %r", name, completion.text[:limit])
                if completion.finish_reason is not None:
                    reason = completion.finish_reason
                    logger.info("Answer %s: %r, %d tokens, %s", name, choice.text, choice.num_tokens, reason)
            yield index, output
