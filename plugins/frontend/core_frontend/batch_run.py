"""The run of a batch of requests to its end in this process.

Owns: its beginning, the loop over steps and its progress bar. Never does: check or translate. Called by: the `LLM`
class.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from core_frontend.api.outputs import RequestOutput
from core_frontend.output_processor import OutputProcessor
from core_frontend.prompts.input_processor import ProcessedInput
from core_frontend.stepped import SteppedClient

logger = logging.getLogger(__name__)

Progress = bool | Callable[..., Any]
"""Whether to show a progress bar, or a callable that makes one (called like `tqdm`)."""


def run_batch(
    client: SteppedClient, processor: OutputProcessor, entries: Sequence[ProcessedInput], progress: Progress
) -> list[RequestOutput]:
    """Run all entries and return their final outputs in the same order.

    On an interruption every request is aborted and its blocks are released before the exception propagates. A
    KeyboardInterrupt is replaced by a new one from here, because the traceback of the interrupted step would mean
    nothing to the user.
    """
    bar = ProgressBar(len(entries), progress)
    try:
        ids = begin_batch(client, processor, entries)
        return _finish(client, processor, ids, bar)
    finally:
        bar.close()


def begin_batch(client: SteppedClient, processor: OutputProcessor, entries: Sequence[ProcessedInput]) -> list[str]:
    """Queue all entries and return their ids. On an interruption none of them stays."""
    ids = [entry.requests[0].request_id for entry in entries]
    try:
        for entry in entries:
            processor.add(entry)
            client.add(entry.requests)
    except BaseException:
        _abort(client, processor, ids)
        raise
    return ids


def finish_batch(client: SteppedClient, processor: OutputProcessor, progress: Progress) -> list[RequestOutput]:
    """Run everything that was queued and return the final outputs in the order of the queue.

    Interruptions: see `run_batch`.
    """
    ids = [state.request_id for state in processor]
    bar = ProgressBar(len(ids), progress)
    try:
        return _finish(client, processor, ids, bar)
    finally:
        bar.close()


def _finish(
    client: SteppedClient, processor: OutputProcessor, ids: Sequence[str], bar: ProgressBar
) -> list[RequestOutput]:
    """Step until all of these requests have ended, and nothing is in flight."""
    finished: dict[str, RequestOutput] = {}
    try:
        while len(finished) < len(ids):
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
        _abort(client, processor, ids)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"{len(finished)} of {len(ids)} requests had ended") from None
        raise
    return [finished[request_id] for request_id in ids]


def _abort(client: SteppedClient, processor: OutputProcessor, ids: Sequence[str]) -> None:
    client.abort(ids)
    processor.abort(ids)


def log_errors(output: RequestOutput) -> None:
    """Log the reason of a failed completion, which is returned like the others."""
    for completion in output.outputs:
        if completion.finish_reason == "error":
            logger.error("Request %s failed: %s", output.request_id, completion.stop_reason)


class ProgressBar:
    """The progress of a batch: finished requests, with the speed of prompt and output tokens since the start."""

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
        """Close the bar, if one is shown."""
        if self._bar is not None:
            self._bar.close()


def default_bar() -> Callable[..., Any]:
    """Return tqdm's class; its notebook bar if in a notebook."""
    from tqdm.auto import tqdm

    make: Callable[..., Any] = tqdm
    return make
