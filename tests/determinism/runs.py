"""One run of the requests in question, the way a case says, with bits of tokens and logprobs as the result."""

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams, StructuredOutputsParams
from core_config.resolve import resolve
from core_frontend.api.outputs import RequestOutput
from core_frontend.async_engine import AsyncEngine
from core_frontend.library.lora_request import LoRARequest
from core_frontend.prompts.prompt_parser import MEDIA
from core_frontend.prompts.tokenizing import load_tokenizer
from core_frontend.request_terms import STRICT
from core_media.config import media_of
from core_media.processing.prompts import BlockingPrompts
from core_media.reading.given import given_media
from tests.adapters.drawn import shapes_of, write_adapter
from tests.determinism.axes import ADAPTERS, Case
from tests.media.checkpoints import picture

MAX_MODEL_LEN = 192
MAX_NUM_SEQS = 8
NUM_COMPANIONS = 5
NUM_DRAFTS = 4
Prompt = dict[str, Any]
Bits = list[tuple[list[int], list[dict[int, float]]]]

RANKS = (4, 16, 20)
"""Of the adapters; one more than the places in a step."""

HELD = StructuredOutputsParams(regex="(yes|no), [a-f]{3,40}; (up|down)")
LENGTHS = (140, 110, 21, 1)
"""Longer than one block of 128; growing out of one; drafts from repetition; a single token."""


def requests(max_tokens: int, seen: Sequence[Prompt] = ()) -> list[tuple[Prompt, SamplingParams]]:
    """Each prompt greedily and seeded, by token ids that every model has, and one whose answer has a grammar.

    seen: prompts with pictures.
    """
    prompts = [{"prompt_token_ids": [20 + (index * 7 + length) % 17 for index in range(length)]} for length in LENGTHS]
    fixed: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True, "logprobs": 2}
    seeded = [
        {"seed": 5, "top_p": 0.9},
        {"seed": 6, "repetition_penalty": 1.1},
        {"seed": 7, "top_k": 50},
        {"seed": 8, "n": 2},
    ]
    held = SamplingParams(temperature=0.9, seed=9, structured_outputs=HELD, max_tokens=max_tokens, logprobs=2)
    return [
        *((prompt, SamplingParams(temperature=0, **fixed)) for prompt in prompts),
        *(
            (prompt, SamplingParams(temperature=0.9, **fixed, **more))
            for prompt, more in zip(prompts, seeded, strict=True)
        ),
        (prompts[2], held),
        *((prompt, SamplingParams(temperature=0.7, seed=index, **fixed)) for index, prompt in enumerate(seen)),
    ]


@cache
def pictured(path: Path) -> list[Prompt]:
    """Prompts with pictures, processed once; none for a model that reads text."""
    resolution = resolve({"model": str(path), "max_model_len": MAX_MODEL_LEN}, context="llm")
    config = media_of(resolution.engine)
    if config is None:
        return []
    tokenizer = load_tokenizer(resolution.manifest.tokenizer, resolution.engine)
    assert tokenizer is not None
    mark = config.placeholder
    texts = [f"{'x' * 21}{mark}cd", f"{mark}ab{mark}{'y' * 15}", f"{'x' * 21}{mark}cd"]
    found: list[Prompt] = []
    with closing(BlockingPrompts(config, tokenizer)) as prompts:
        for number, text in enumerate(texts):
            images = [picture(number, 50, 40), picture(number + 1, 30, 70)][: text.count(mark)]
            sources = given_media({"multi_modal_data": {"image": images}}, config, "")
            _, ids, items = prompts.run(text, sources, tokenizer.encode)
            found.append({"prompt_token_ids": ids, MEDIA: items})
    return found


def companions(seed: int, max_tokens: int) -> list[tuple[Prompt, SamplingParams]]:
    """Random other requests; some share the beginning of a prompt in question."""
    draw = random.Random(seed)
    found = []
    for index in range(NUM_COMPANIONS):
        ids = [draw.randrange(10, 250) for _ in range(draw.randrange(1, 150))]
        if index % 2:
            ids = requests(1)[0][0]["prompt_token_ids"][: draw.randrange(1, 140)] + ids[:10]
        params = SamplingParams(temperature=draw.choice((0, 1.0)), seed=draw.randrange(99), max_tokens=max_tokens)
        found.append(({"prompt_token_ids": ids}, params))
    return found


def settings(path: Path, case: Case, arguments: dict[str, Any]) -> dict[str, Any]:
    """The engine's arguments for a case, `arguments` among them."""
    found: dict[str, Any] = {
        **arguments,
        "model": str(path),
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": 2048 if case["chunk"] == "whole" else max(int(case["chunk"]), MAX_NUM_SEQS),
        "block_size": int(case["block"]),
        "async_scheduling": case["planning"] == "async",
        "kv_cache_memory_bytes": 1 << 27,
        "platform_config": arguments.get("platform_config") or {"threads": int(case["threads"])},
        "enforce_eager": case["steps"] == "eager",
    }
    if case["chunk"] in ("7", "1"):  # in steps that still have a token for everybody
        found["long_prefill_token_threshold"] = int(case["chunk"])
    if case["drafts"] == "ngram":
        found["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": NUM_DRAFTS,
            "prompt_lookup_max": 3,
            "adaptive": False,
        }
    if case["interrupted"] == "sleep":
        found["enable_sleep_mode"] = True
    if case["adapters"] in ADAPTERS:
        found |= {"enable_lora": True, "max_loras": 2, "max_cpu_loras": len(RANKS), "max_lora_rank": max(RANKS)}
        if case["drafts"] == "ngram" and case["chunk"] != "whole":  # whose budget must hold all drafts
            found["max_num_batched_tokens"] = MAX_NUM_SEQS * (NUM_DRAFTS + 1)
            found["long_prefill_token_threshold"] = int(case["chunk"])
    if case["memory"] == "tight":  # blocks for one longest request
        plan = resolve(found, context="llm").memory
        found["num_gpu_blocks_override"] = plan.blocks_of(MAX_MODEL_LEN) + 1
    return found


def run(path: Path, case: Case, arguments: dict[str, Any], max_tokens: int, seed: int = 0) -> Bits:
    """The results of `requests`, whatever else the case asks for. arguments: of the engine, beside those of the case."""
    with adapters_for(path, case) as adapters:
        return _run(path, case, arguments, max_tokens, seed, adapters)


@contextmanager
def adapters_for(path: Path, case: Case) -> Iterator[list[LoRARequest]]:
    """The adapters of a case, the same ones each time."""
    with tempfile.TemporaryDirectory(prefix="adapters-") as folder:
        every = shapes_of(str(path)) if case["adapters"] in ADAPTERS else {}
        shapes = {name: shape for name, shape in every.items() if "vis" not in name}  # of the text alone
        yield [
            LoRARequest(f"rank-{rank}", rank, str(write_adapter(Path(folder, str(rank)), shapes, rank, seed=rank)))
            for rank in (RANKS if shapes else ())
        ]


def _run(
    path: Path, case: Case, arguments: dict[str, Any], max_tokens: int, seed: int, adapters: list[LoRARequest]
) -> Bits:
    settled = settings(path, case, arguments)
    asked = [(*one, None) for one in requests(max_tokens, pictured(path))]
    if case["adapters"] == "own":  # the last of each turn is one of the base
        turn = [*adapters, None]
        asked = [(prompt, params, turn[index % len(turn)]) for index, (prompt, params, _) in enumerate(asked)]
    others = [
        (*one, adapters[index % len(adapters)] if adapters else None)
        for index, one in enumerate(companions(seed, max_tokens))
    ]
    batches = [[one] for one in asked] if case["company"] == "alone" else [others + asked]
    batches *= 2 if case["cache"] == "warm" else 1
    if case["client"] == "zmq":
        outputs = asyncio.run(_over_zmq(settled, batches, case["interrupted"]))
    else:
        outputs = _in_process(settled, batches, sleeps=case["interrupted"] == "sleep")
    return [
        (
            choice.token_ids,
            [{token: entry.logprob for token, entry in position.items()} for position in choice.logprobs],
        )
        for output in outputs[-len(asked) :]
        for choice in output.outputs
    ]


Batch = list[tuple[Prompt, SamplingParams, LoRARequest | None]]


def _in_process(settled: dict[str, Any], batches: list[Batch], *, sleeps: bool) -> list[RequestOutput]:
    """sleeps: whether the engine sleeps before the last batch, after it has read what that batch needs."""
    llm = LLM(**settled)
    found: list[RequestOutput] = []
    try:
        for number, batch in enumerate(batches, 1):
            if sleeps and number == len(batches):
                for adapter in filter(None, (one[2] for one in batch)):
                    llm.add_lora(adapter)
                llm.sleep(level=2)
                llm.wake_up()
            prompts, params, adapters = ([one[index] for one in batch] for index in range(3))
            named = adapters if any(adapters) else None
            found += llm.generate(prompts, params, use_tqdm=False, lora_request=named)
        return found
    finally:
        llm.close()


async def _over_zmq(settled: dict[str, Any], batches: list[Batch], interrupted: str) -> list[RequestOutput]:
    """interrupted: what happens to the engine once the first request has a token; see `axes`."""
    begun = asyncio.Event()
    engine = await AsyncEngine.start(resolve(settled, context="serve"))

    async def last(
        prompt: Prompt, params: SamplingParams, adapter: LoRARequest | None, request_id: str
    ) -> RequestOutput:
        loaded = None if adapter is None else await engine.adapters.find(adapter.lora_name)
        terms = replace(STRICT, adapter=None if loaded is None else loaded.facts)
        found = []
        async for output in engine.generate(prompt, params, request_id, terms):
            found.append(output)
            begun.set()
        return found[-1]

    async def interrupt() -> None:
        await begun.wait()
        if interrupted == "sleep":
            await engine.control.sleep(2, "keep")
            await engine.control.wake_up(None)
        elif interrupted == "death":
            os.kill(engine.pid, signal.SIGKILL)

    interruption = asyncio.create_task(interrupt())
    try:
        for adapter in {one[2].lora_name: one[2] for batch in batches for one in batch if one[2]}.values():
            await engine.adapters.load(adapter.lora_name, adapter.lora_path)
        found = [
            output
            for number, batch in enumerate(batches)
            for output in await asyncio.gather(*(last(*one, f"{number}-{index}") for index, one in enumerate(batch)))
        ]
        await interruption
        assert engine.restarts.num_restarts.total() == (interrupted == "death")
        return found
    finally:
        interruption.cancel()
        await engine.close()
