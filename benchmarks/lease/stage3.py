"""Stage 3: one engine of the shape of an 8B model, with everything that requests do to it.

Owns: the requests. Called by: `benchmarks.lease.child`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.lease.engines import decode_rate, engine, generate, late_kernels, phases, prompts
from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row
from benchmarks.lease.shapes import token_bytes, token_numbers

NAME = "Llama-3-8B"
LONGEST = 131072
TOP_P = {"temperature": 0.6, "top_p": 0.9, "seed": 1}
WHOLE = {"max_num_seqs": 256, "max_model_len": LONGEST, "max_num_batched_tokens": 8192}


def everything(place: Place) -> Iterator[Row]:
    """One engine, because its start is what takes longest."""
    begin = time.perf_counter()
    with engine(place, NAME, **WHOLE) as llm:
        yield Row("", "start with invented weights", time.perf_counter() - begin, "s", goal="≤ 12 s")
        for phase, seconds in phases(llm).items():
            yield Row("", f"start: {phase}", seconds, "s")
        yield Row("", "first token", generate(llm, prompts(place, 1, 128, NAME), 1) * 1e3, "ms")
        yield Row("", "first token, the second time", generate(llm, prompts(place, 1, 129, NAME), 1) * 1e3, "ms")
        yield from decoding(place, llm)
        yield from filling(place, llm)
        yield from arrivals(place, llm)
        yield from profile(place, llm)
        yield Row("", "kernels compiled after the start", late_kernels(llm), "kernels", goal="0")
        graphs = getattr(llm._live_client().worker.runtime, "_graphs", None)
        if graphs is not None:
            yield Row("", "recorded graphs, seconds", graphs.seconds, "s", goal="≤ 3 s")
            yield Row("", "recorded graphs, memory", graphs.spent / 2**20, "MiB", goal="≤ 300 MiB")


def decoding(place: Place, llm: Any) -> Iterator[Row]:
    """Decode alone, by number of streams, and with a filter."""
    for count in place.pick((1, 8, 64, 256), (1, 2)):
        asked = prompts(place, count, 128, NAME)
        rate = decode_rate(place, llm, asked)
        share = rate * token_bytes(NAME) / place.copy_rate if count == 1 else None
        yield Row(
            "", f"decode, {count} streams", count * rate, "tokens/s", share, "copy rate", "≥ 85%" if count == 1 else ""
        )
        yield Row("", f"decode, {count} streams: a step", 1e3 / rate, "ms")
    for count in place.pick((1, 64), (1,)):
        rate = decode_rate(place, llm, prompts(place, count, 128, NAME), **TOP_P)
        yield Row("", f"decode with top-p, {count} streams: a step", 1e3 / rate, "ms")


def filling(place: Place, llm: Any) -> Iterator[Row]:
    """Prompts alone."""
    for count, length in ((1, 8192), (16, 1024)):
        asked = prompts(place, count, length, NAME)
        generate(llm, asked, 1)
        tokens = sum(len(one["prompt_token_ids"]) for one in asked)
        seconds = generate(llm, prompts(place, count, length + 1, NAME), 1)
        share = 2 * token_numbers(NAME) * tokens / seconds / place.matmul_rate
        yield Row("", f"prompts {count} x {length}", tokens / seconds, "tokens/s", share, "matmul rate", "≥ 70%")


def arrivals(place: Place, llm: Any) -> Iterator[Row]:
    """Requests that come one after another, so that most steps are mixed."""
    from core import SamplingParams

    tokens = place.pick(64, 4)
    for rate in (10, 30):
        asked = prompts(place, place.pick(4 * rate, 4), 256, NAME)
        client = llm.llm_engine if hasattr(llm, "llm_engine") else None
        if client is None or not hasattr(client, "add_request"):
            yield Row("", "arrivals: this engine takes no single requests", is_fine=True)
            return
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin, steps, waiting = time.perf_counter(), 0, list(enumerate(asked))
        while waiting or client.has_unfinished_requests():
            while waiting and time.perf_counter() - begin >= place.pick(waiting[0][0] / rate, 0):
                number, prompt = waiting.pop(0)
                client.add_request(f"{rate}-{number}", prompt, params)
            if client.has_unfinished_requests():
                client.step()
                steps += 1
        seconds = time.perf_counter() - begin
        yield Row("", f"{rate} arrivals a second: steps", steps / seconds, "steps/s")
        yield Row("", f"{rate} arrivals a second: tokens", len(asked) * tokens / seconds, "tokens/s")


def profile(place: Place, llm: Any) -> Iterator[Row]:
    """What the device does not do between steps, and a trace of 30 of them."""
    if place.is_cpu:
        yield Row("", "profile: a processor has no second clock", is_fine=True)
        return
    for count in (1, 256):
        asked = prompts(place, count, 128, NAME)
        generate(llm, asked, 8)
        kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as traced:
            generate(llm, asked, 30)
        traced.export_chrome_trace(f"{os.environ.get('OUT') or '.'}/steps-{count}.json.gz")
        on_device = [event for event in traced.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        spans = sorted((event.time_range.start, event.time_range.end) for event in on_device)
        half = spans[len(spans) // 2 :]  # by then every step only decodes
        busy, end = 0.0, half[0][0]
        for start, stop in half:
            busy += max(stop - max(start, end), 0)
            end = max(end, stop)
        idle = 100 * (1 - busy / (end - half[0][0]))
        yield Row("", f"idle between steps, {count} streams", idle, "%", goal="≤ 3%" if count == 256 else "")


def speculation(place: Place) -> Iterator[Row]:
    """Drafts of n-grams, at the same prompts with and without."""
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
    for name, arguments in (("without drafts", {}), ("with drafts of n-grams", drafts)):
        with engine(place, NAME, max_num_seqs=8, max_model_len=2048, **arguments) as llm:
            rate = decode_rate(place, llm, prompts(place, 1, 128, NAME), 64)
            yield Row("", f"{name}, 1 stream", rate, "tokens/s")
            yield Row("", f"{name}: kernels compiled after the start", late_kernels(llm), "kernels", goal="0")


MEASUREMENTS = (Measurement("engine", 420, everything), Measurement("speculation", 110, speculation))
