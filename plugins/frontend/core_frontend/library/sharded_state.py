"""Saving of a model's tensors from a script written for vLLM, for `load_format="sharded_state"`.

Owns: vLLM's names for that. Never does: write a tensor (`core_runtime.models.tensors.saving` does). Called by: such scripts,
through `core_compat.aliases` and `LLMEngine.engine_core`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.models.tensors import shards
from core_runtime.models.tensors.saving import MAX_PART_BYTES, save_sharded


class ShardedStateLoader:
    """The names of the files of a sharded state; one rank has all of them."""

    DEFAULT_PATTERN = shards.DEFAULT
    TP_ONLY_PATTERN = shards.DEFAULT
    PP_AND_TP_PATTERN = shards.DEFAULT


class EngineCore:
    """The part of `llm_engine.engine_core` that such scripts call.

    open_checkpoint: opens the model with its current weights.
    """

    def __init__(self, open_checkpoint: Callable[[], Checkpoint]) -> None:
        self._open_checkpoint = open_checkpoint

    def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """Write the tensors, in the form that they have in the checkpoint, with configuration and tokenizer.

        path: a directory that is new or empty. pattern: names of the files. max_size: bytes of tensors in one of them.
        Raises UserError, CheckpointError.
        """
        checkpoint = self._open_checkpoint()
        save_sharded(
            checkpoint.loader,
            checkpoint.manifest,
            Path(path).absolute(),
            pattern=pattern or shards.DEFAULT,
            max_bytes=MAX_PART_BYTES if max_size is None else max_size,
        )
