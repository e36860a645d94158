"""This project as a worker, through `LLM`. Options: model, arguments (for `LLM`), adapters (their folder)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from worker_loop import Options, serve


class Engine:
    def __init__(self, options: Options) -> None:
        from core import LLM, SamplingParams, __version__

        self.imported = time.perf_counter()
        self.version = __version__
        self._params = SamplingParams
        self._folder = options.get("adapters")
        self._adapters: dict[str, Any] = {}
        self._llm = LLM(model=options["model"], use_tqdm_on_load=False, **options["arguments"])
        if hasattr(self._llm, "embed"):
            self.embed = self._embed

    def generate(self, prompts: list[list[int]], max_tokens: int, adapters: list[str] | None = None) -> list[list[int]]:
        params = self._params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        own = {} if adapters is None else {"lora_request": [self._adapter(name) for name in adapters]}
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False, **own)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _adapter(self, name: str) -> Any:
        from core_frontend.library.lora_request import LoRARequest

        if name not in self._adapters:
            number = len(self._adapters) + 1
            self._adapters[name] = LoRARequest(name, number, str(Path(self._folder, name)))
        return self._adapters[name]

    def drafts(self) -> list[int]:
        stats = self._llm.stats()
        return [stats.spec_num_draft_tokens, stats.spec_num_accepted_tokens]

    def _embed(self, texts: list[str], batch: int) -> int:
        outputs: list[Any] = []
        for start in range(0, len(texts), batch):
            outputs += self._llm.embed(texts[start : start + batch], use_tqdm=False)
        return len(outputs[0].outputs.embedding)

    def close(self) -> None:
        self._llm.close()


if __name__ == "__main__":
    serve(Engine)
