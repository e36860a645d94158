"""vLLM on a CPU as a worker. Options: model, arguments (for `vllm.LLM`), adapters (their folder)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from worker_loop import Options, serve


class Engine:
    def __init__(self, options: Options) -> None:
        import vllm

        self.imported = time.perf_counter()
        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._folder = options.get("adapters")
        self._adapters: dict[str, Any] = {}
        self._llm = vllm.LLM(options["model"], **options["arguments"])

    def generate(self, prompts: list[list[int]], max_tokens: int, adapters: list[str] | None = None) -> list[list[int]]:
        params = self._params(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        own = {} if adapters is None else {"lora_request": [self._adapter(name) for name in adapters]}
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False, **own)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _adapter(self, name: str) -> Any:
        from vllm.lora.request import LoRARequest

        if name not in self._adapters:
            number = len(self._adapters) + 1
            self._adapters[name] = LoRARequest(name, number, str(Path(self._folder, name)))
        return self._adapters[name]

    def drafts(self) -> list[int]:
        values = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
        return [int(values.get(name, 0)) for name in names]


if __name__ == "__main__":
    serve(Engine)
