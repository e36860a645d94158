"""Trials of a model's arguments on this machine, from the resolved configuration to the findings.

Owns: what is known before the first server starts (load, memory, values to try). Never does: parse words, or print. Called
by: the command `core tune`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from core.api.errors import UserError
from core_commands.bench.dataset_options import NAMES
from core_commands.bench.datasets import prompts
from core_commands.bench.workload import estimated_tokens
from core_commands.cli.own_files import own_path
from core_commands.client.host_memory import FREE, available_bytes
from core_commands.tune.candidates import Choice, choose, rows_of
from core_commands.tune.goals import Goals
from core_commands.tune.options import TuneOptions
from core_commands.tune.trials import Findings, Terms, Trials
from core_commands.tune.workbench import ServerBench
from core_config.arguments.tunes import Situation
from core_config.resolve import resolve
from core_config.selection.reasons import device_type
from core_config.stages.memory import MemoryPlan, human_bytes

if TYPE_CHECKING:
    from core_config.arguments.parser import Parsed
    from core_config.resolve import Resolution

STREAMS: Final = 8
"""Requests at once where nothing is said of the load."""
REFUSED: Final = ("models", "model_budget", "headless", "node_rank", "nnodes")
"""Arguments with which one command is not one server of one model."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known before a server starts. values: the user's arguments. streams: limit of requests at once; None: a rate."""

    options: TuneOptions
    goals: Goals
    base: Resolution
    values: Mapping[str, Any]
    choice: Choice
    streams: int | None
    side_by_side: bool


def prepare(options: TuneOptions, parsed: Parsed) -> Prepared:
    """Read the load, resolve the arguments and choose the values to try. Raises UserError, ConfigError."""
    goals = Goals.read(options.goal or (), options.percentile)
    if not math.isinf(options.request_rate) and not goals.limits:
        raise UserError(
            f"--request-rate {options.request_rate:g}: at a fixed rate every value has the same throughput; give a --goal, "
            "such as ttft:500, or leave the rate out."
        )
    rows = rows_of(options.only)
    options = with_dataset(options)
    load = prompts(msgspec.structs.replace(options, num_prompts=min(options.num_prompts, 64)))
    streams = options.max_concurrency or (STREAMS if math.isinf(options.request_rate) else None)
    refused = [name for name in REFUSED if name in parsed.values]
    if refused:
        raise UserError(f"{refused[0]}: core tune starts servers of one model on one host; leave it out.")

    def again(further: Mapping[str, Any]) -> Resolution:
        return resolve({**parsed.values, **further}, context="serve", problems=parsed.problems)

    base = again({})
    situation = Situation(
        device=device_type(base.engine.device),
        num_processors=len(os.sched_getaffinity(0)),
        streams=streams,
        prompt_tokens=max(estimated_tokens(prompt.text) for prompt in load),
        answer_tokens=max(prompt.max_tokens for prompt in load),
        kv_tokens=base.memory.tokens,
        has_states=any(group.kind == "state" for group in base.memory.groups),
        goals=goals.limits,
        present={name: value for name, (value, _, _) in base.arguments.items()},
    )
    longest = situation.prompt_tokens + situation.answer_tokens
    if longest > base.memory.max_model_len:
        raise UserError(
            f"The dataset's longest request is about {longest:,} tokens, and the model takes {base.memory.max_model_len:,}; "
            "give shorter prompts or answers, or a --max-model-len."
        )
    room = _room(base) if situation.device == "cpu" else (lambda resolution: "")
    choice = choose(rows, situation, base, again, room)
    side_by_side = situation.device == "cpu" and fits_twice(base.memory)
    values = dict(base.given)
    values.setdefault("model", base.engine.model.model)
    return Prepared(options, goals, base, values, choice, streams, side_by_side)


def run_trials(prepared: Prepared, directory: Path, say: Callable[[str], object]) -> Findings:
    """Measure what was chosen. directory: for files and logs of the servers. Raises UserError, CoreError."""
    options = prepared.options
    bench = ServerBench(
        options,
        prepared.goals,
        prepared.values,
        directory,
        side_by_side=prepared.side_by_side,
        streams=prepared.streams,
    )
    terms = Terms(
        seconds=60 * options.minutes,
        least=math.log1p(options.least_effect / 100),
        allow_other_bits=options.allow_other_bits,
        say=say,
    )
    trials = Trials(bench, prepared.choice.candidates, terms)
    trials.findings.dropped += prepared.choice.dropped
    return trials.run()


def with_dataset(options: TuneOptions) -> TuneOptions:
    """Return options whose --dataset is written as --dataset-name and --dataset-path. Raises UserError."""
    given = options.dataset
    if given is None:
        return options
    if options.dataset_path is not None:
        raise UserError(f"--dataset {given}: --dataset-path names a file already; leave one of them out.")
    if given in NAMES:
        return msgspec.structs.replace(options, dataset=None, dataset_name=given)
    path = own_path(given)
    try:
        with path.open("rb") as file:
            start = file.read(256).lstrip()
    except OSError as error:
        raise UserError(
            f"--dataset {given}: cannot be read: {error.strerror}; expected one of {', '.join(NAMES)}, or a file."
        ) from None
    if not start:
        raise UserError(f"--dataset {given}: the file is empty; expected a prompt a line, or conversations.")
    name = "sharegpt" if start.startswith(b"[") else "custom"
    return msgspec.structs.replace(options, dataset=None, dataset_name=name, dataset_path=given)


def planned_bytes(plan: MemoryPlan) -> int:
    """Return the bytes of an engine in the plan."""
    return plan.weights + plan.proposer + plan.kv + plan.workspace + plan.adapters + plan.tower + plan.tower_rows


def fits_twice(plan: MemoryPlan) -> bool:
    """Whether two engines of a plan fit in the memory that is available now."""
    available = available_bytes()
    return available is not None and 2 * planned_bytes(plan) <= FREE * available


def _room(base: Resolution) -> Callable[[Resolution], str]:
    """Return a check that a configuration fits in memory beside the present one, or alone where not even two of that do."""
    available = available_bytes()
    if available is None:
        return lambda resolution: ""
    beside = planned_bytes(base.memory) if fits_twice(base.memory) else 0

    def check(resolution: Resolution) -> str:
        wanted = planned_bytes(resolution.memory)
        if wanted + beside <= FREE * available:
            return ""
        return f"it takes {human_bytes(wanted)}, and {human_bytes(FREE * available - beside)} are available for it"

    return check
