"""mistral.rs on a GGUF file as a worker. Options: model (a file whose tokenizer has a token a byte), max_num_seqs.

It takes text alone, so each token of a prompt becomes a letter; the number of tokens that it counts is checked.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worker_loop import Options, serve

LETTERS = "cdefghijklmnopqrstuvwxyz"
"""Without `a` and `b`, which the tokenizer joins."""


class Engine:
    def __init__(self, options: Options) -> None:
        from importlib.metadata import version

        import mistralrs

        self.imported = time.perf_counter()
        self.version = version("mistralrs")
        self._request = mistralrs.CompletionRequest
        path = Path(options["model"])
        which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
        self._runner = mistralrs.Runner(which=which, max_seqs=options["max_num_seqs"])

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        def one(ids: list[int]) -> list[int]:
            text = "".join(LETTERS[token % len(LETTERS)] for token in ids)
            request = self._request(prompt=text, model="default", max_tokens=max_tokens, temperature=0.0)
            usage = self._runner.send_completion_request(request).usage
            if abs(usage.prompt_tokens - len(ids)) > 1:  # it may put a token in front
                raise RuntimeError(f"a prompt of {len(ids)} tokens became {usage.prompt_tokens}")
            return [0] * usage.completion_tokens

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts))


if __name__ == "__main__":
    serve(Engine)
