"""Ways to run the same sampled requests, each of which must give the same bits.

Owns: the requests, the ways, and one run. Never does: compare. Called by: tests of layers whose bits must not depend on a step.
"""

from pathlib import Path

from core import LLM, SamplingParams

PROMPTS = [list(range(5, 52)), [9, 9, 8, 7] * 5, [200]]
ROOM = {"max_model_len": 128, "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 4, "dtype": "float32"}

WAYS = {
    "chunks of 5": {"max_num_batched_tokens": 5},
    "blocks of 1": {"block_size": 1},
    "preempted": {"num_gpu_blocks_override": 12, "rounds": 2},
    "cached prefixes": {"rounds": 2},
    "blocks from host memory": {"num_gpu_blocks_override": 12, "kv_offloading_size": 0.01, "rounds": 3},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
    "planned ahead": {"async_scheduling": True, "rounds": 2},
    "asleep in between": {"rounds": 2, "sleeps": True, "enable_sleep_mode": True},
}


def opened(path: Path, **settings: object) -> LLM:
    return LLM(model=str(path), use_tqdm_on_load=False, **{**ROOM, **settings})


def sampled(path: Path, alone: bool = False, rounds: int = 1, sleeps: bool = False, **settings: object) -> list:
    """Tokens and log-probabilities of the last of some rounds of sampled requests."""
    asked = [
        SamplingParams(temperature=0.8, seed=n, max_tokens=30, ignore_eos=True, logprobs=2) for n in range(len(PROMPTS))
    ]
    prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
    with opened(path, **settings) as llm:
        for number in range(rounds):
            if sleeps and number:
                llm.sleep(level=1)
                llm.wake_up()
            if alone:
                outputs = [llm.generate(*one, use_tqdm=False)[0] for one in zip(prompts, asked, strict=True)]
            else:
                outputs = llm.generate(prompts, asked, use_tqdm=False)
    choices = [output.outputs[0] for output in outputs]
    return [(c.token_ids, [{t: p.logprob for t, p in at.items()} for at in c.logprobs]) for c in choices]
