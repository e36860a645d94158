"""vLLM's scheduler, driven as `benchmarks/scheduler.py` drives ours: steady decode, no model, one token a sequence.

Run by that benchmark with an interpreter whose environment has vllm. Prints one JSON object: median microseconds of
`schedule` plus `update_from_output`, by the number of running sequences.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 1000
BLOCK_SIZE = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 50000,
    "max_position_embeddings": 100_000,
}


def make_scheduler(num_running: int, num_steps: int) -> Any:
    """A scheduler whose sequences have just finished their prompts."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    length = PROMPT_TOKENS + num_steps + 100
    directory = tempfile.mkdtemp()
    Path(directory, "config.json").write_text(json.dumps(MODEL))
    num_blocks = num_running * (length // BLOCK_SIZE + 1) + 1
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = num_blocks
    config = VllmConfig(
        model_config=ModelConfig(model=directory, skip_tokenizer_init=True, dtype="float32", max_model_len=length),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_model_len=length,
            max_num_seqs=num_running,
            max_num_batched_tokens=max(PROMPT_TOKENS * num_running, length),
            async_scheduling=False,
            is_encoder_decoder=False,
        ),
    )
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    scheduler = Scheduler(config, kv, StructuredOutputManager(config), BLOCK_SIZE, log_stats=True)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    for number in range(num_running):
        params = SamplingParams(max_tokens=num_steps + 50, stop_token_ids=[2])
        prompt = [number, *range(PROMPT_TOKENS - 1)]
        scheduler.add_request(Request(f"request-{number}", prompt, params, None, block_hasher=hasher))
    output = scheduler.schedule()
    scheduler.update_from_output(output, answer(output))
    assert len(scheduler.running) == num_running
    return scheduler


def answer(output: Any) -> Any:
    """Token 7 for every request."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
    )


def measure(num_running: int, num_steps: int) -> float:
    """Median microseconds of a step."""
    scheduler = make_scheduler(num_running, num_steps)
    spent = []
    gc.collect()
    gc.freeze()
    for _ in range(num_steps):
        start = time.thread_time()
        output = scheduler.schedule()
        planned = time.thread_time()
        result = answer(output)
        answered = time.thread_time()
        scheduler.update_from_output(output, result)
        spent.append(planned - start + time.thread_time() - answered)
    return statistics.median(spent) * 1e6


def main() -> None:
    """Print the object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--running", default="1,64,256,1024")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    print(json.dumps({count: measure(int(count), arguments.steps) for count in arguments.running.split(",")}))


if __name__ == "__main__":
    main()
