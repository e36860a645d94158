"""An engine and its turns, for tests of what a next turn computes: also for a process of its own, which starts quickly."""

from core import LLM, SamplingParams
from tests.inside import core_of
from tests.kv.connector_rows import tiers_of

BLOCK = 16
TOKENS = SamplingParams(max_tokens=37, temperature=0.0, logprobs=2, ignore_eos=True)


def open_engine(path, **options):
    return LLM(
        model=str(path), max_model_len=512, max_num_seqs=4, block_size=BLOCK, kv_cache_memory_bytes="64M", **options
    )


def ask(llm, tokens):
    """The answer, its log-probabilities, and the number of cached tokens of the prompt."""
    (answer,) = llm.generate([{"prompt_token_ids": tokens}], TOKENS)
    (choice,) = answer.outputs
    numbers = [{token: entry.logprob for token, entry in row.items()} for row in choice.logprobs]
    return list(choice.token_ids), numbers, answer.num_cached_tokens


def save_in_idle_time(llm):
    """Idle time until the disk has everything."""
    core = core_of(llm)
    while core.idle() is not None:
        tiers_of(core.kv_services).disk.flush()


def wait_to_be_killed(path, pages, prompt, pipe):
    """Answer, save in idle time, report the answer and wait."""
    llm = open_engine(path, kv_offloading_disk_path=pages)
    answer, _, _ = ask(llm, prompt)
    save_in_idle_time(llm)
    pipe.send(answer)
    pipe.recv()
