"""A process with one engine, in which some plugins are left out or have their earlier code.

Owns: this process: the canary's probe, and timed rounds when it is asked for them. Never does: judge results, or read
the canary's records. Called by: the nursery, in a process of its own, whose search path begins with earlier code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.api.config import EngineConfig
from core.api.errors import CoreError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.plugin.registry import PluginRegistry

if TYPE_CHECKING:
    from core.engine.core import EngineCore

PROMPT_TOKENS: Final = 64
NEW_TOKENS: Final = 16
ROUND_S: Final = 0.06
"""Processor seconds of a round: shorter ones are mostly noise of the machine."""
WARM_REQUESTS: Final = 4
MOST_REQUESTS: Final = 64
QUIET: Final = {"state_canary": None, "quarantine_plugins": False, "disable_log_stats": True, "use_tqdm_on_load": False}
"""Arguments of every trial: it neither reads nor writes records."""


class Task(msgspec.Struct, frozen=True):
    """What to start.

    values: engine arguments as the user gave them.
    without: (kind, name, distribution) of plugins to leave out.
    files: copies that stand in for files that `--plugins` names, by their resolved paths.
    """

    values: dict[str, Any]
    without: tuple[tuple[str, str, str], ...] = ()
    files: dict[str, str] = {}


class Outcome(msgspec.Struct, frozen=True):
    """Results of the canary's probe, or why there are none."""

    tokens: list[int] = []
    logprobs: list[str] = []
    error: str = ""


def run_trial(task: Task) -> None:
    """Run a trial in this process: the outcome is its first line of output.

    Each line of input is the number of requests of a round; 0 asks for warming up, and for a suggestion of that number.
    Does not return: the process ends with its input.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What a plugin prints is no answer.

    def tell(answer: object) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    try:
        config, core, outcome = _start(task)
    except Exception as error:
        # Whatever a plugin raises is an outcome: the start fails.
        tell(Outcome(error=str(error) if isinstance(error, CoreError) else f"{type(error).__name__}: {error}"))
        os._exit(0)
    tell(outcome)
    requests = _requests(config)
    with os.fdopen(0, "rb") as words:
        for word in words:
            number = int(word)
            tell(_round(core, requests, number) if number else _suggested(core, requests))
    os._exit(0)


def _start(task: Task) -> tuple[EngineConfig, EngineCore, Outcome]:
    """Start the engine and compute the probe. Raises CoreError, and whatever a plugin raises."""
    from core_config.resolve import resolve
    from core_observers.engine.canary import probe_request, probed
    from core_supervision.link.inproc import InprocClient

    values, registry = _arranged(task)
    config = resolve(values, context="explain", registry=registry).engine
    core = InprocClient(config).core
    found = probed(core.compute(probe_request(config)), core.executor.numerics)
    return config, core, Outcome(found.tokens, found.logprobs)


def _arranged(task: Task) -> tuple[dict[str, Any], PluginRegistry]:
    """Return the arguments without the plugins that are left out, and a registry in which these are blocked."""
    from core_config.arguments.sources import merge
    from core_config.leaving_out import without

    values = task.values | QUIET
    merged = {name: given.value for name, given in merge(values, os.environ).values.items()}
    if merged["plugins"]:
        merged["plugins"] = values["plugins"] = with_copies(merged["plugins"], task.files)
    plain = PluginRegistry(words=merged["plugins"])
    left_out = [row for row in plain.rows() if (row.kind, row.name, row.distribution) in task.without]
    for row in left_out:
        changed = without(row, merged)
        merged |= changed
        values |= changed
    registry = PluginRegistry(words=merged["plugins"])
    for row in left_out:
        registry.block(row, "bypassed by core plugins doctor")
    return values, registry


def with_copies(words: str, files: dict[str, str]) -> str:
    """Return the words of `--plugins` with copies of files in place of the files."""
    parts = [word.strip() for word in words.split(",")]
    return ",".join(files.get(str(Path(part).expanduser().resolve()), part) for part in parts)


def _suggested(core: EngineCore, requests: Iterator[EngineRequest]) -> int:
    """Warm the engine up, and return how many requests a round should have."""
    seconds = ROUND_S
    for _ in range(WARM_REQUESTS):
        begin = time.process_time()
        _timed(core, next(requests))
        seconds = time.process_time() - begin
    return min(int(ROUND_S / max(seconds, 1e-6)) + 1, MOST_REQUESTS)


def _round(core: EngineCore, requests: Iterator[EngineRequest], number: int) -> tuple[float, float, float]:
    """Return the seconds of a prompt, of a generated token, and of the processor for a request."""
    begin = time.process_time()
    times = [_timed(core, next(requests)) for _ in range(number)]
    processor = (time.process_time() - begin) / number
    # Medians: a request during which the process had no processor says nothing about a plugin.
    return median(prompt for prompt, _ in times), median(step for _, step in times), processor


def _requests(config: EngineConfig) -> Iterator[EngineRequest]:
    """Yield requests with prompts that no cached prefix shortens, the same ones in every trial."""
    limit = config.model.max_model_len
    new = max(min(NEW_TOKENS, limit // 2), 1)
    length = max(min(PROMPT_TOKENS, limit - new), 1)
    vocabulary = max(config.model.vocab_size, 1)
    params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    pools = config.model.pooling
    number = 0
    while True:
        number += 1
        prompt = [((number * 4096 + index) * 2654435761 + 12345) % vocabulary for index in range(length)]
        pooling = None if pools is None else pools.usual
        yield EngineRequest(f"core-doctor-{number}", 0, prompt, params, seed=0, pooling=pooling)


def _timed(core: EngineCore, request: EngineRequest) -> tuple[float, float]:
    """Compute a request; return the seconds until its first token, and those of each further one."""
    begin = first = time.perf_counter()
    tokens = 0
    core.add([request])
    while core.has_work():
        for output in core.step().outputs:
            if output.finish_reason == "error":
                raise CoreError(f"The request failed: {output.stop_reason}")
            if not tokens:
                first = time.perf_counter()
            tokens += len(output.token_ids)
    step = (time.perf_counter() - first) / (tokens - 1) if tokens > 1 else first - begin
    return first - begin, step
