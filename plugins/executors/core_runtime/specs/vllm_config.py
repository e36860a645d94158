"""The configuration under vLLM's names, for scripts and logits processors that were written for it.

Owns: `VllmConfig`. Never does: change anything. Called by: `core_runtime.executor.processors.loading`
and `LLMEngine` (make it), users.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from core.api.config import EngineConfig


class Section(SimpleNamespace):
    """Settings by name. Raises AttributeError, listing the existing names, for any other one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        offered = ", ".join(sorted(vars(self)))
        raise AttributeError(f"there is no setting '{name}' here; there are: {offered}")


class VllmConfig(Section):
    """The sections model_config, scheduler_config, cache_config; speculative_config and lora_config are None."""

    def __init__(self, config: EngineConfig) -> None:
        model = config.model
        hf_config = Section(**_with_labels(model.hf_config))
        scheduler = config.scheduler
        super().__init__(
            model_config=Section(
                model=model.model,
                tokenizer=model.tokenizer or model.model,
                max_model_len=model.max_model_len,
                max_logprobs=model.max_logprobs,
                logprobs_mode=model.logprobs_mode,
                seed=model.seed,
                hf_config=hf_config,
                hf_text_config=hf_config,
                get_vocab_size=lambda: model.vocab_size,
            ),
            scheduler_config=Section(
                max_num_seqs=scheduler.max_num_seqs,
                max_num_batched_tokens=scheduler.max_num_batched_tokens,
                max_model_len=scheduler.max_model_len,
            ),
            cache_config=Section(block_size=config.cache.block_size),
            speculative_config=None,
            lora_config=None,
        )


def _with_labels(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's configuration with class names by number; absent names are generated as transformers does."""
    given = hf_config.get("id2label")
    num_labels = hf_config.get("num_labels", 2)
    named = given if isinstance(given, Mapping) else {number: f"LABEL_{number}" for number in range(num_labels)}
    labels = {int(number): label for number, label in named.items()}
    return {**hf_config, "id2label": labels, "num_labels": len(labels)}
