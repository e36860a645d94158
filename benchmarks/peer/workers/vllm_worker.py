"""vLLM on a CPU as a worker. Options: model, arguments (for `vllm.LLM`)."""

from __future__ import annotations

import time

from worker_loop import Options, serve


class Engine:
    def __init__(self, options: Options) -> None:
        import vllm

        self.imported = time.perf_counter()
        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(options["model"], **options["arguments"])

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        params = self._params(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def drafts(self) -> list[int]:
        values = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
        return [int(values.get(name, 0)) for name in names]


if __name__ == "__main__":
    serve(Engine)
