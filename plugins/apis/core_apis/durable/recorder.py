"""The record of one HTTP request: the outputs of each of its prompts, in this and earlier servers.

Owns: `RequestRecorder` and its part for each prompt. Never does: write to the disk (the journal does). Called by:
`run_prompts`, which hands the parts to the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from core.api.messages import EngineOutput
from core_apis.answers.prompt_output import PromptOutput
from core_apis.journal.journal import EntryLog
from core_apis.journal.reader import Entry
from core_frontend.api.outputs import RequestOutput


class PromptRecorder:
    """The record of one prompt; a `core_frontend.recording.Recorder`."""

    def __init__(self, log: EntryLog, prompt: int, seed: int | None, past: Sequence[Sequence[EngineOutput]]) -> None:
        self.seed = seed
        self.past = past
        self._log = log
        self._prompt = prompt

    def begin(self, seed: int) -> None:
        """Record the start with the prompt's seed, as in `Recorder`."""
        if self.seed is None:
            self._log.begun(self._prompt, seed)
        self.seed = seed

    def record(self, outputs: Sequence[EngineOutput]) -> None:
        """Record the outputs of one step, as in `Recorder`."""
        self._log.given(self._prompt, outputs)


class RequestRecorder:
    """The record of all prompts of a request. entry: the journal entry of an earlier server; None: the request is new.

    again: whether an earlier server has accepted the request.
    """

    def __init__(self, log: EntryLog, entry: Entry | None = None) -> None:
        self.log = log
        self.again = entry is not None
        self._entry = Entry(log.number) if entry is None else entry
        self._num_past = 0
        for steps in self._entry.steps.values():
            for step in steps:
                self._num_past += sum(len(output.token_ids) for output in step)

    @property
    def repeats(self) -> bool:
        """Whether all outputs so far repeat those of earlier servers."""
        return self.again and self._num_past >= 0

    def part(self, prompt: int) -> PromptRecorder:
        """Return the recorder of the prompt with this number."""
        seed = self._entry.seeds.get(prompt)
        return PromptRecorder(self.log, prompt, seed, self._entry.steps.get(prompt, ()))

    async def in_order(self, outputs: AsyncGenerator[PromptOutput, None]) -> AsyncGenerator[PromptOutput, None]:
        """Yield the outputs of several prompts: first those that earlier servers showed, in that order.

        Closes `outputs`.
        """
        held: deque[PromptOutput] = deque()
        async with aclosing(outputs):
            for prompt in self._entry.shown:
                while (item := _first_of(held, prompt)) is None:
                    news = await anext(outputs, None)
                    if news is None:
                        break
                    held.append(news)
                if item is not None:
                    yield item
            for item in held:
                self.log.shown(item[0])
                yield item
            async for item in outputs:
                self.log.shown(item[0])
                yield item

    def count(self, output: RequestOutput) -> None:
        """Count an output that is about to be written."""
        self._num_past -= sum(len(completion.token_ids) for completion in output.outputs)


def _first_of(held: deque[PromptOutput], prompt: int) -> PromptOutput | None:
    """Remove and return the first output of a prompt; None if there is none."""
    for place, item in enumerate(held):
        if item[0] == prompt:
            del held[place]
            return item
    return None
