"""A llama of random weights on the engine's own layers and on those of transformers, in turns.

    python -m benchmarks.fallback [--hidden 2048] [--layers 16] [--rounds 5] [--dtype bfloat16] [--profile]

Prints, for short requests together, for long prompts and for the decode of one request, the median seconds of both and how
much of the own layers' speed the others have. --profile: where the time of one decode on transformers' modules goes.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models

from core import LLM, SamplingParams
from core.api.sampling_params import SamplingParams as Params

IMPLEMENTATIONS = ("core", "transformers")
VOCABULARY = 32000


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of both.

    count: requests.
    prompt: tokens of each.
    answer: tokens of each answer.
    """

    name: str
    count: int
    prompt: int
    answer: int

    def run(self, llm: LLM, turn: int) -> float:
        """Seconds. turn: makes the prompts others than before, so that no prefix is known."""
        prompts = []
        for index in range(self.count):
            first = 10 + turn * self.count + index
            ids = [first % VOCABULARY]
            ids += [100 + (7 * i + first) % 20000 for i in range(self.prompt - 1)]
            prompts.append({"prompt_token_ids": ids})
        params: Params = SamplingParams(temperature=0, max_tokens=self.answer, ignore_eos=True)
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin


LOADS = (
    Load("short requests", 16, 32, 16),
    Load("long prompts", 2, 1024, 1),
    Load("decode of one", 1, 8, 32),
)


def write_config(directory: Path, hidden: int, layers: int) -> None:
    """A llama's configuration, and a tokenizer that nobody uses."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 256,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    words = {"<unk>": 0, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.save(str(directory / "tokenizer.json"))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_config(Path(directory), given.hidden, given.layers)
        llms: dict[str, LLM] = {}
        for name in IMPLEMENTATIONS:
            llms[name] = LLM(
                directory,
                load_format="dummy",
                dtype=given.dtype,
                model_impl=name,
                max_model_len=2048,
                kv_cache_memory_bytes=512 << 20,
            )
        measure(llms, given.rounds)
        if given.profile:
            profile(llms["transformers"])
        for llm in llms.values():
            llm.close()


def measure(llms: dict[str, LLM], rounds: int) -> None:
    """All loads, both implementations in turns; the first turn does not count."""
    for load in LOADS:
        seconds: dict[str, list[float]] = {name: [] for name in llms}
        for turn in range(rounds + 1):
            for name, llm in llms.items():
                seconds[name].append(load.run(llm, turn))
        medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}
        pairs = zip(seconds["core"][1:], seconds["transformers"][1:], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        own, other = medians["core"], medians["transformers"]
        print(f"{load.name:16s} core {own:8.3f} s   transformers {other:8.3f} s   {ratio:5.2f} of the speed")


def profile(llm: LLM) -> None:
    """Functions in which a decode spends its time."""
    profiler = cProfile.Profile()
    profiler.enable()
    LOADS[-1].run(llm, 99)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
