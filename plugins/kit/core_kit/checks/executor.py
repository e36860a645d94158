"""Checks of executors: every sequence gets its tokens however its steps are divided, and slots can be reused.

Owns: the checks. Never does: judge the tokens themselves. Called by: `core_kit.suite`.

Each check runs a whole engine in this process, on the kit's tiny checkpoint or the author's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.api.errors import CoreError
from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core_config.resolve import resolve
from core_kit.case import Failure, Subject
from core_supervision.link.inproc import InprocClient

NUM_TOKENS = 6
PROMPTS = ([1, *range(40, 61)], [1, 50, 51], [1, *range(70, 83)], [1, 90])
FEW_BLOCKS = 7
"""Number of blocks of 8 tokens that cannot hold all prompts at once, so that sequences are preempted."""
MAX_STEPS = 1000


def has_sizes(subject: Subject) -> None:
    """The executor has blocks for the cache, and names what its results depend on."""
    client = _client(subject)
    try:
        executor = client.core.executor
        if executor.num_blocks < 1 or executor.page_bytes < 1:
            sizes = f"num_blocks {executor.num_blocks}, page_bytes {executor.page_bytes}"
            raise Failure(f"the executor has {sizes}; expected at least 1 of each")
        if not executor.numerics:
            raise Failure(
                "numerics is empty; it names all that results depend on, so that caches of others are not taken"
            )
    finally:
        client.close()


def gives_tokens(subject: Subject) -> None:
    """Every sequence of a batch gets as many tokens as it asked for, all of the vocabulary."""
    tokens, _ = _generated(subject)
    size = _configured(subject).model.vocab_size
    for prompt, answer in zip(PROMPTS, tokens, strict=True):
        if len(answer) != NUM_TOKENS:
            raise Failure(f"the prompt {prompt} got {len(answer)} tokens, asked for {NUM_TOKENS}")
        if not all(0 <= token < size for token in answer):
            raise Failure(f"the prompt {prompt} got {answer}; expected ids from 0 to {size - 1}")


def chunks_change_nothing(subject: Subject) -> None:
    """Prompts that are computed in chunks get the same tokens."""
    whole, _ = _generated(subject)
    cut, _ = _generated(subject, max_num_batched_tokens=8, max_num_seqs=4)
    _same(whole, cut, "in chunks of at most 8 tokens")


def preemption_changes_nothing(subject: Subject) -> None:
    """Sequences that lose their blocks and come back get the same tokens."""
    whole, _ = _generated(subject)
    again, num_preemptions = _generated(subject, num_gpu_blocks_override=FEW_BLOCKS)
    if not num_preemptions:
        raise Failure(
            f"with --num-gpu-blocks-override {FEW_BLOCKS} no sequence was preempted; expected that num_blocks is "
            "config.cache.num_blocks where that is given"
        )
    _same(whole, again, "after a preemption")


def slots_serve_again(subject: Subject) -> None:
    """A sequence that is aborted leaves its slot to others, which get their own tokens."""
    whole, _ = _generated(subject)
    client = _client(subject)
    try:
        client.add([_request(f"gone{number}", prompt, 64) for number, prompt in enumerate(PROMPTS)])
        client.step()
        client.step()
        client.abort([f"gone{number}" for number in range(len(PROMPTS))])
        _same(whole, _answers(client), "in slots of aborted sequences")
    finally:
        client.close()


CHECKS: tuple[Callable[[Subject], None], ...] = (
    has_sizes,
    gives_tokens,
    chunks_change_nothing,
    preemption_changes_nothing,
    slots_serve_again,
)


def _configured(subject: Subject, **settings: Any) -> Any:
    """Return the configuration of an engine on the subject's checkpoint."""
    checkpoint = subject.sample.manifest.ref
    given = {
        "model": subject.model or checkpoint,
        "executor": subject.name,
        "executor_config": dict(subject.arguments),
        "device": subject.device,
        "max_model_len": 48,
        "block_size": 8,
        "max_num_seqs": 4,
        "kv_cache_memory_bytes": 4 << 20,
        "enable_prefix_caching": False,
        "use_tqdm_on_load": False,
        **settings,
    }
    return resolve(given, context="llm", registry=subject.registry, environ={}).engine


def _client(subject: Subject, **settings: Any) -> InprocClient:
    """Start an engine in this process."""
    return InprocClient(_configured(subject, **settings))


def _generated(subject: Subject, **settings: Any) -> tuple[list[list[int]], int]:
    """Return the tokens after each prompt, and the number of preempted sequences."""
    client = _client(subject, **settings)
    try:
        return _answers(client), client.stats().num_preemptions
    finally:
        client.close()


def _answers(client: InprocClient) -> list[list[int]]:
    """Return the tokens after each prompt. Raises Failure when a sequence fails, or does not end."""
    client.add([_request(f"r{number}", prompt, NUM_TOKENS) for number, prompt in enumerate(PROMPTS)])
    tokens: dict[str, list[int]] = {f"r{number}": [] for number in range(len(PROMPTS))}
    steps = 0
    while client.has_work():
        steps += 1
        if steps > MAX_STEPS:
            raise Failure(f"{len(PROMPTS)} sequences did not end within {MAX_STEPS} steps")
        try:
            outputs = client.step()
        except CoreError as error:
            raise Failure(f"a step failed: {error}") from error
        for output in outputs:
            if output.finish_reason == "error":
                raise Failure(f"a sequence failed: {output.stop_reason}")
            if output.request_id in tokens:
                tokens[output.request_id] += output.token_ids
    return list(tokens.values())


def _request(name: str, prompt: Sequence[int], num_tokens: int) -> EngineRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    return EngineRequest(name, 0, list(prompt), params, 1)


def _same(expected: list[list[int]], found: list[list[int]], how: str) -> None:
    """Raise Failure where answers differ."""
    for prompt, wanted, answer in zip(PROMPTS, expected, found, strict=True):
        if answer != wanted:
            raise Failure(f"the prompt {prompt} got {answer} {how}, and {wanted} otherwise")
