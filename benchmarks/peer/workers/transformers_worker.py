"""transformers as a worker: `generate` on a causal model, scores of other engines' outputs, sentence embeddings.

Options: model, threads, dtype, adapters (their folder); kind is `causal` or `encoder`.
"""

from __future__ import annotations

import time
from pathlib import Path

from worker_loop import Options, serve


class Causal:
    def __init__(self, options: Options) -> None:
        import torch
        import transformers

        self.imported = time.perf_counter()
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        torch.set_num_threads(options["threads"])
        dtype = getattr(torch, options["dtype"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
        self._folder = options.get("adapters")
        self._adapters: set[str] = set()

    def generate(self, prompts: list[list[int]], max_tokens: int, adapters: list[str] | None = None) -> list[list[int]]:
        torch = self._torch
        if adapters is not None:
            self._load(set(adapters))
        with torch.inference_mode():
            ids = torch.tensor(prompts)
            limits = {"max_new_tokens": max_tokens, "min_new_tokens": max_tokens, "do_sample": False, "pad_token_id": 0}
            out = self._model.generate(ids, attention_mask=torch.ones_like(ids), **limits)
        rows: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return rows

    def _load(self, names: set[str]) -> None:
        """Load what is missing; one adapter at a time is what `generate` applies."""
        from peft import PeftModel

        if len(names) > 1:
            raise RuntimeError("transformers with peft applies one adapter to a whole batch here")
        (name,) = names
        folder = str(Path(self._folder, name))
        if not self._adapters:
            self._model = PeftModel.from_pretrained(self._model, folder, adapter_name=name).eval()
        elif name not in self._adapters:
            self._model.load_adapter(folder, adapter_name=name)
        self._adapters.add(name)
        self._model.set_adapter(name)

    def score(self, prompts: list[list[int]], outputs: list[list[int]]) -> list[float]:
        """Mean log probability of each output after its prompt."""
        torch, scores = self._torch, []
        with torch.inference_mode():
            for prompt, output in zip(prompts, outputs, strict=True):
                logits = self._model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
                rows = torch.log_softmax(logits, -1)
                scores.append(float(rows[torch.arange(len(output)), torch.tensor(output)].mean()))
        return scores


class Encoder:
    """Mean-pooled, normalized sentence embeddings."""

    def __init__(self, options: Options) -> None:
        import torch
        import transformers

        self.imported = time.perf_counter()
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        torch.set_num_threads(options["threads"])
        dtype = getattr(torch, options["dtype"])
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(options["model"])
        self._model = transformers.AutoModel.from_pretrained(options["model"], dtype=dtype).eval()

    def embed(self, texts: list[str], batch: int) -> int:
        torch, width = self._torch, 0
        with torch.inference_mode():
            for start in range(0, len(texts), batch):
                inputs = self._tokenizer(texts[start : start + batch], padding=True, return_tensors="pt")
                hidden = self._model(**inputs).last_hidden_state.float()
                mask = inputs["attention_mask"][..., None]
                pooled = (hidden * mask).sum(1) / mask.sum(1)
                width = torch.nn.functional.normalize(pooled).shape[1]
        return int(width)


if __name__ == "__main__":
    serve(lambda options: {"causal": Causal, "encoder": Encoder}[options["kind"]](options))
