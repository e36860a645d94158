"""Fixtures for the tests of plugin packages: `pytest_plugins = ["core_kit.pytest_plugin"]` in their conftest.py.

Owns: a tiny checkpoint and a way to generate text with chosen plugins. Never does: collect or change tests.
Called by: pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Generate = Callable[..., list[list[int]]]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random llama of two layers: config.json, model.safetensors, tokenizer.json."""
    from core_kit.checkpoints import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("tiny_checkpoint"))


@pytest.fixture(scope="session")
def generate_greedily(tiny_checkpoint: Path) -> Generate:
    """Return generate_greedily(prompts, max_tokens=8, model=None, **arguments) -> token ids, greedy, one list per
    prompt.

    prompts: lists of token ids.
    arguments: as for `core.LLM`.

    The engine runs in this process and is closed afterwards.
    """

    def generate(
        prompts: list[list[int]], max_tokens: int = 8, model: Path | str | None = None, **arguments: Any
    ) -> list[list[int]]:
        from core import LLM, SamplingParams

        settings: dict[str, Any] = {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, **arguments}
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        with LLM(model=str(model or tiny_checkpoint), use_tqdm_on_load=False, **settings) as llm:
            outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate
