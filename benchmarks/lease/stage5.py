"""Stage 5: other shapes, weights of few bits, sleep, and the server.

Owns: the engines. Called by: `benchmarks.lease.child`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.lease.engines import decode_rate, engine, generate, late_kernels, prompts
from benchmarks.lease.place import Measurement, Place
from benchmarks.lease.rows import Row
from benchmarks.lease.shapes import TINY, token_bytes, write

START_S = 50


def shape(name: str, place: Place, **arguments: Any) -> Iterator[Row]:
    """Decode and prompts of a shape."""
    begin = time.perf_counter()
    with engine(place, name, max_num_seqs=64, max_model_len=8192, max_num_batched_tokens=8192, **arguments) as llm:
        yield Row("", f"{name}: start with invented weights", time.perf_counter() - begin, "s")
        for count in place.pick((1, 64), (1,)):
            rate = decode_rate(place, llm, prompts(place, count, 128, name), 64)
            share = rate * token_bytes(name) / place.copy_rate if count == 1 and not arguments else None
            yield Row("", f"{name}: decode, {count} streams", count * rate, "tokens/s", share, "copy rate")
        asked = prompts(place, 4, 2000, name)
        generate(llm, asked, 1)
        tokens = sum(len(one["prompt_token_ids"]) for one in asked)
        seconds = generate(llm, prompts(place, 4, 2001, name), 1)
        yield Row("", f"{name}: prompts 4 x 2000", tokens / seconds, "tokens/s")
        yield Row("", f"{name}: kernels compiled after the start", late_kernels(llm), "kernels", goal="0")


def sleeping(place: Place) -> Iterator[Row]:
    """A sleeping engine gives its memory back, and continues with the same tokens."""
    from core import SamplingParams

    name = "Llama-3-8B"
    asked = prompts(place, 2, 64, name)
    params = SamplingParams(temperature=0.0, max_tokens=place.pick(16, 4), ignore_eos=True, detokenize=False)
    with engine(place, name, max_num_seqs=8, max_model_len=2048, enable_sleep_mode=True) as llm:
        before = [one.outputs[0].token_ids for one in llm.generate(asked, params, use_tqdm=False)]
        held = _free(place)
        begin = time.perf_counter()
        llm.sleep(level=1)
        yield Row("", "sleep", time.perf_counter() - begin, "s")
        yield Row("", "memory given back", (_free(place) - held) / 2**30, "GiB")
        begin = time.perf_counter()
        llm.wake_up()
        yield Row("", "wake up", time.perf_counter() - begin, "s")
        after = [one.outputs[0].token_ids for one in llm.generate(asked, params, use_tqdm=False)]
        yield Row(
            "", "answers with the same tokens", sum(map(list.__eq__, map(list, before), map(list, after))), "of 2"
        )


def _free(place: Place) -> int:
    import torch

    return 0 if place.is_cpu else torch.cuda.mem_get_info()[0]


def server(place: Place) -> Iterator[Row]:
    """The server, with requests of its own load generator."""
    if find_spec("fastapi") is None:
        yield Row("", "the server's packages are not there (build/lease/server)", is_fine=True)
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        path = write("Llama-3-8B", Path(folder), place.pick({}, TINY))
        words = ["serve", str(path), "--port", str(port), "--load-format", "dummy", "--skip-tokenizer-init"]
        words += ["--max-model-len", str(place.pick(8192, 64)), "--device", "cpu" if place.is_cpu else "cuda:0"]
        words += ["--plugins", "no:cpu_native"] if place.is_cpu else []
        begin = time.perf_counter()
        start = "import core_engine, sys; sys.exit(core_engine.main())"
        process = subprocess.Popen([sys.executable, "-c", start, *words])
        try:
            _wait(f"http://127.0.0.1:{port}/health", process)
            yield Row("", "server: ready", time.perf_counter() - begin, "s")
            yield from _load(place, f"http://127.0.0.1:{port}/v1/completions", str(path))
        finally:
            process.terminate()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the server did not become ready; its exit code is {process.poll()}")


def _load(place: Place, url: str, model: str) -> Iterator[Row]:
    """Send prompts of token ids from threads."""
    from concurrent.futures import ThreadPoolExecutor

    count, tokens = place.pick((256, 64), (2, 4))
    asked = prompts(place, count, 256, "Llama-3-8B")

    def ask(prompt: dict[str, list[int]]) -> int:
        body = {"model": model, "prompt": prompt["prompt_token_ids"], "max_tokens": tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    begin = time.perf_counter()
    with ThreadPoolExecutor(64) as pool:
        total = sum(pool.map(ask, asked))
    yield Row(
        "", f"server: {count} requests of 256 + {tokens}, 64 at once", total / (time.perf_counter() - begin), "tokens/s"
    )


def beside(place: Place) -> Iterator[Row]:
    """64 prompts at once, and the same with transformers' continuous batching."""
    name, count, tokens = "Llama-3-8B", 64, 128
    if place.is_cpu:
        yield Row("", "transformers' continuous batching needs a GPU", is_fine=True)
        return
    import torch

    asked = prompts(place, count, 512, name)
    with engine(place, name, max_num_seqs=count, max_model_len=2048) as llm:
        generate(llm, asked, 8)
        ours = count * tokens / generate(llm, asked, tokens)
    yield Row("", f"{count} requests of 512 + {tokens}", ours, "tokens/s")
    torch.cuda.empty_cache()
    theirs = _transformers_rate(name, [one["prompt_token_ids"] for one in asked], tokens)
    yield Row("", "transformers' continuous batching, the same", theirs, "tokens/s")
    yield Row("", "times transformers", ours / theirs, "x", goal="≥ 3 x")


def _transformers_rate(name: str, asked: list[list[int]], tokens: int) -> float:
    """Return tokens a second of transformers, on the same shape."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with tempfile.TemporaryDirectory() as folder, torch.device("cuda"):
        config = AutoConfig.from_pretrained(write(name, Path(folder)))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    asking = GenerationConfig(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, eos_token_id=-1)
    model.generate_batch(asked[:2], generation_config=asking)
    begin = time.perf_counter()
    answers = model.generate_batch(asked, generation_config=asking)
    seconds = time.perf_counter() - begin
    return sum(len(answer.generated_tokens) for answer in answers.values()) / seconds


def _shape(name: str, limit: float, what: str = "", **arguments: Any) -> Measurement:
    return Measurement(f"{name}{what}", limit, lambda place: shape(name, place, **arguments))


MEASUREMENTS = (
    _shape("Qwen3-30B-A3B", 110),
    _shape("gpt-oss-20b", 90),
    _shape("Llama-3-8B", 65, " in fp8", quantization="fp8"),
    _shape("Llama-3-8B", 65, " in nf4", quantization="nf4"),
    Measurement("sleep", 55, sleeping),
    Measurement("server", 85, server),
    Measurement("beside transformers", 60, beside),
)
