"""A batch of requests run to its end in this process.

Owns: the loop over steps and its progress bar. Never does: check or translate. Called by: the `LLM` class.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from core.api.outputs import RequestOutput
from core.engine.inproc import InprocClient
from core.engine.input_processor import ProcessedInput
from core.engine.output_processor import OutputProcessor

logger = logging.getLogger(__name__)

Progress = bool | Callable[..., Any]
"""Whether to show a progress bar, or what to make one with (called like `tqdm`)."""


def run_batch(
    client: InprocClient, processor: OutputProcessor, entries: Sequence[ProcessedInput], progress: Progress
) -> list[RequestOutput]:
    """Run all entries and return their final outputs in the same order.

    When it is interrupted, every request is aborted and its blocks are given back before the exception goes on; Ctrl-C's goes
    on from here, since the step that it met says nothing to anybody.
    """
    ids = [entry.requests[0].request_id for entry in entries]
    finished: dict[str, RequestOutput] = {}
    bar = ProgressBar(len(entries), progress)
    try:
        for entry in entries:
            processor.add(entry)
            client.add(entry.requests)
        while len(finished) < len(entries):
            processed = processor.process(client.step())
            if processed.stopped:
                client.abort_choices(processed.stopped)
            for output in processed.outputs:
                if output.finished:
                    finished[output.request_id] = output
                    log_errors(output)
                    bar.advance(output)
        while client.has_work():
            client.step()
    except BaseException as error:
        client.abort(ids)
        processor.abort(ids)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"{len(finished)} of {len(ids)} requests had ended") from None
        raise
    finally:
        bar.close()
    return [finished[request_id] for request_id in ids]


def log_errors(output: RequestOutput) -> None:
    """A completion that failed is returned like the others; so the log tells the reason."""
    for completion in output.outputs:
        if completion.finish_reason == "error":
            logger.error("Request %s failed: %s", output.request_id, completion.stop_reason)


class ProgressBar:
    """Finished requests, with the speed of prompt and output tokens since the start."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._bar: Any = None
        self._begin = time.perf_counter()
        self._num_input = 0
        self._num_output = 0
        if progress:
            make = progress if callable(progress) else default_bar()
            self._bar = make(total=total, desc="Processed prompts", unit="prompt", dynamic_ncols=True)

    def advance(self, output: RequestOutput) -> None:
        """Count one finished request."""
        if self._bar is None:
            return
        self._num_input += len(output.prompt_token_ids) * len(output.outputs)
        self._num_output += sum(len(completion.token_ids) for completion in output.outputs)
        elapsed = max(time.perf_counter() - self._begin, 1e-9)
        self._bar.set_postfix_str(
            f"input {self._num_input / elapsed:.1f} tok/s, output {self._num_output / elapsed:.1f} tok/s", refresh=False
        )
        self._bar.update(1)

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()


def default_bar() -> Callable[..., Any]:
    """tqdm; its notebook bar when in a notebook."""
    from tqdm.auto import tqdm

    make: Callable[..., Any] = tqdm
    return make
