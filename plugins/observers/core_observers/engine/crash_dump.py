"""A file about the steps that an engine is computing, which remains when it dies of one.

Owns: `CrashDump`, an observer that writes the file before each step, and its content. Never does: tell why an engine died (its
owner does), or keep an id of a request or token, or a text. Called by: the engine core.

The file is written before the step, because a process that is killed or crashes can write nothing. It is removed when the
engine ends by itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from core.api.config import EngineConfig
from core.engine.observer import Engine, EngineObserver, EngineStart
from core.scheduler.step import Step
from core_observers.observer_settings import CRASH_DUMP
from core_observers.own_directory import own_directory

logger = logging.getLogger(__name__)

MOST_FILES: Final = 64
"""Files of dead engines that are kept in the directory; with as many, no further one is written."""


class CrashDump(EngineObserver):
    """The file of one engine. directory: where it lies. facts: of the engine, the same in each step."""

    def __init__(self, directory: Path, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._steps: dict[int, Mapping[str, Any]] = {}
        self._size = 0
        self.path = directory / f"engine-{os.getpid()}-{time.time_ns() // 1_000_000}.json"
        self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._write()

    @classmethod
    def open(cls, start: EngineStart) -> Self | None:
        """Begin the file; None where there is to be none. Raises UserError for a directory that cannot be used."""
        given = start.config.plugins.arguments.get(CRASH_DUMP)
        if given is None:
            return None
        directory = own_directory("--crash-dump", given["directory"])
        found = sorted(directory.glob("engine-*.json"))
        if len(found) >= MOST_FILES:
            logger.warning(
                "--crash-dump %s: %d files are there, so this engine writes none; remove those that were read.",
                directory,
                len(found),
            )
            return None
        return cls(directory, facts_of(start.config, start.epoch))

    def attach(self, engine: Engine) -> None:
        """Keep the scheduler, whose state is part of the file."""
        self._engine = engine

    def submitted(self, step: Step) -> None:
        """Write a step before it is computed, with those that have no result yet."""
        if not step.plan.total_num_tokens:  # it only removes sequences, and `finished` is not called for it
            return
        self._steps[step.number] = step_values(step)
        stats = self._engine.scheduler.stats()
        state = {"running": stats.num_running, "waiting": stats.num_waiting, "kv_cache_usage": stats.kv_cache_usage}
        self._write(scheduler=state)

    def finished(self, step: Step) -> None:
        """Drop a step that has its result, and the failed ones before it."""
        self._steps = {number: values for number, values in self._steps.items() if number > step.number}
        if not self._steps:
            self._write()

    def close(self) -> None:
        """Remove the file: the engine ends by itself."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def _write(self, **values: Any) -> None:
        """Replace the content in one call, so that a death leaves the former or the new one; spaces fill what is left over."""
        data = msgspec.json.encode({**self._facts, "time": time.time(), **values, "steps": list(self._steps.values())})
        size = max(len(data), self._size)
        os.pwrite(self._file, data.ljust(size), 0)
        self._size = size


def facts_of(config: EngineConfig, epoch: int) -> dict[str, Any]:
    """Return what is the same for all steps of an engine."""
    model, cache, limits = config.model, config.cache, config.limits
    return {
        "pid": os.getpid(),
        "epoch": epoch,
        "model": model.model,
        "device": config.device,
        "dtype": model.dtype,
        "quantization": config.plugins.quantization,
        "kernels": list(config.plugins.kernels),
        "attention": config.plugins.attention,
        "max_model_len": model.max_model_len,
        "cache": {"dtype": cache.dtype, "block_size": cache.block_size, "bytes": cache.memory_bytes},
        "limits": msgspec.to_builtins(limits),
    }


def step_values(step: Step) -> dict[str, Any]:
    """Return a step's shapes and lengths: a row for each sequence, decodes first."""
    plan = step.plan
    rows = {
        "slots": plan.slots.tolist(),
        "computed_tokens": plan.num_computed.tolist(),
        "new_tokens": plan.query_lens.tolist(),
    }
    return {
        "step": step.number,
        "tokens": plan.total_num_tokens,
        "decodes": step.num_decodes,
        "chunks": [{"tokens": chunk.num_tokens, "completes": chunk.completes} for chunk in step.chunks],
        "sequences": rows,
        "new_sequences": [
            {
                "slot": new.slot,
                "known_tokens": new.num_computed_tokens,
                "output_tokens": len(new.output_token_ids),
                "max_length": new.max_length,
                "blocks": [len(ids) for ids in new.block_ids],
            }
            for new in plan.new
        ],
        "removed_slots": list(plan.removed),
        "drafts_ordered": sum(plan.draft_budget.values()),
    }
