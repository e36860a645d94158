"""What `--kv-sharing-fast-prefill` saves in a prefill: processor seconds of prompts, with and without it.

Run: `python -m benchmarks.fast_prefill [PROMPT_TOKENS] [ROUNDS]`. The model is made up, with invented weights and a small
vocabulary: the layers of Gemma 4 E2B at half its width, 35, of which the last 20 read the keys and values of earlier ones and
have MLPs of twice the width. Two engines take turns; each prompt is new, so no prefix is found. Prints medians of tokens per
processor second.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.composition import build_engine
from core.engine.core import EngineCore
from core_config.resolve import resolve
from core_runtime.executor.uniproc import UniprocExecutor

VOCABULARY = 4096
SHAPE = {
    "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 35, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "global_head_dim": 512, "sliding_window": 512, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 128, "vocab_size_per_layer_input": VOCABULARY, "max_position_embeddings": 8192,
    "layer_types": ["full_attention" if index % 5 == 4 else "sliding_attention" for index in range(35)],
    "tie_word_embeddings": True,
}  # fmt: skip


def start(directory: str, tokens: int, *, fast: bool) -> EngineCore:
    """Start an engine with the made-up model. fast: whether its last layers compute only rows that are read."""
    given = {
        "model": directory, "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": tokens + 16,
        "max_num_seqs": 1, "kv_cache_memory_bytes": 1 << 28, "dtype": "bfloat16", "use_tqdm_on_load": False,
        "kv_sharing_fast_prefill": fast,
    }  # fmt: skip
    return build_engine(resolve(given, context="serve", environ={}).engine, UniprocExecutor, {})


def prompt_seconds(core: EngineCore, name: str, ids: list[int]) -> float:
    """Return the processor seconds of a prompt and one token of its answer."""
    params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    core.add([EngineRequest(name, 0, ids, params, seed=1)])
    begin = time.process_time()
    while core.has_work():
        core.step()
    return time.process_time() - begin


def main() -> None:
    """Print the medians of both engines, and of the ratio."""
    words = [int(word) for word in sys.argv[1:]]
    tokens, rounds = [*words, *(512, 5)[len(words) :]]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(SHAPE))
        engines = {fast: start(directory, tokens, fast=fast) for fast in (False, True)}
    taken: dict[bool, list[float]] = {fast: [] for fast in engines}
    for turn in range(rounds + 1):
        ids = [random.randrange(5, VOCABULARY) for _ in range(tokens)]
        for fast in sorted(engines, reverse=bool(turn % 2)):
            seconds = prompt_seconds(engines[fast], f"r{turn}", ids)
            if turn:  # the first prompt touches memory
                taken[fast].append(seconds)
    for fast, name in ((False, "all rows"), (True, "rows that are read")):
        print(f"{name}: {tokens / statistics.median(taken[fast]):.1f} tokens a processor second")
    ratio = statistics.median(whole / kept for whole, kept in zip(taken[False], taken[True], strict=True))
    print(f"median ratio: {ratio:.2f}")


if __name__ == "__main__":
    main()
