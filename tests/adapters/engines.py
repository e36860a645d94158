"""Engines with adapters whose requests are made by hand.

Owns: the configuration, and how a request names an adapter. Never does: judge an answer. Called by: the tests of adapters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from core import LLM, RequestOutput, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.inside import digest_of, run_entries, unload

VOCABULARY = 260

Wanted = tuple[Sequence[int], Path | None]
"""A prompt, and the adapter of its request."""


class AdapterEngine:
    """An `LLM` with adapters. limits: arguments for them; None: an engine without adapters."""

    def __init__(self, model: Path, limits: dict[str, Any] | None = None, **settings: Any) -> None:
        usual = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8, "enable_prefix_caching": False}
        usual |= {"max_logprobs": VOCABULARY, "logprobs_mode": "raw_logits"}
        if limits is not None:
            usual |= {"enable_lora": True, "max_loras": 4, "max_cpu_loras": 4, "max_lora_rank": 64} | limits
        self.llm = LLM(model=str(model), **(usual | settings))
        self.digests: dict[Path, str] = {}
        self._number = 0

    def load(self, *paths: Path) -> None:
        """Load adapters, each by the name of its path."""
        for path in paths:
            self.digests[path] = digest_of(self.llm, LoRARequest(str(path), lora_path=str(path)))

    def drop(self, path: Path) -> None:
        """Unload an adapter."""
        unload(self.llm, str(path))

    def run(self, wanted: Sequence[Wanted], params: SamplingParams, begins: int = 0) -> list[RequestOutput]:
        """Run all at once. begins: first position that adapters compute."""
        entries = []
        for prompt, adapter in wanted:
            self._number += 1
            entry = self.llm._input.process(f"r{self._number}", {"prompt_token_ids": list(prompt)}, params)
            for request in entry.requests:
                request.adapter = "" if adapter is None else self.digests[adapter]
                request.adapter_from = 0 if adapter is None else begins
            entries.append(entry)
        return run_entries(self.llm, entries)

    def close(self) -> None:
        self.llm.close()


@contextmanager
def engine(model: Path, limits: dict[str, Any] | None = None, **settings: Any) -> Iterator[AdapterEngine]:
    made = AdapterEngine(model, limits, **settings)
    try:
        yield made
    finally:
        made.close()


def tokens_of(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


def bits_of(output: RequestOutput) -> tuple[list[int], list[dict[int, float]]]:
    """Tokens and all numbers that were reported."""
    choice = output.outputs[0]
    rows = [*(output.prompt_logprobs or []), *(choice.logprobs or [])]
    return list(choice.token_ids), [{t: p.logprob for t, p in (row or {}).items()} for row in rows]


def prompt_logits(output: RequestOutput, vocabulary: int = VOCABULARY) -> np.ndarray:
    """[T - 1, V], of a prompt whose logits were all asked for."""
    rows = (output.prompt_logprobs or [])[1:]
    found = np.full((len(rows), vocabulary), np.nan, np.float32)
    for index, row in enumerate(rows):
        for token, entry in row.items():
            found[index, token] = entry.logprob
    return found
