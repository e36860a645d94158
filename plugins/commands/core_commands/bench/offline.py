"""Benchmarks of an engine in this process: the latency of batches, the throughput of many requests.

Owns: both measurements. Never does: print. Called by: `core bench latency` and `core bench throughput`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from core.api.errors import ConfigError
from core.api.sampling_params import SamplingParams
from core.api.structured_outputs import StructuredOutputsParams
from core.args.arg import Given
from core_commands.bench.dataset_options import DatasetOptions
from core_commands.bench.datasets import prompts
from core_commands.bench.offline_options import LatencyOptions, ThroughputOptions
from core_commands.bench.progress import progress
from core_commands.bench.workload import Prompt

if TYPE_CHECKING:
    from core_config.arguments.parser import Parsed
    from core_frontend.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)
UNSAID = "the measurement"


@contextmanager
def engine(parsed: Parsed, **defaults: Any) -> Iterator[LLM]:
    """Start the engine that `parsed` describes. defaults: arguments that the user did not set. Raises UserError."""
    if parsed.problems:
        raise ConfigError(parsed.problems)
    for warning in parsed.warnings:
        print(f"core: warning: {warning}", file=sys.stderr)
    values: dict[str, Any] = {name: Given(value, UNSAID) for name, value in defaults.items()}
    values |= parsed.values
    model = values.pop("model", None)
    tokenizer = values.pop("tokenizer", None)
    from core_frontend.llm import LLM

    with LLM(_plain(model), tokenizer=_plain(tokenizer), **values) as made:
        yield made


def latency(options: LatencyOptions, parsed: Parsed) -> dict[str, Any]:
    """Measure seconds of batches of random tokens. Prefix caching is off by default, because all batches are equal."""
    with engine(parsed, enable_prefix_caching=False) as llm:
        draw = random.Random(0)
        size = llm.get_tokenizer().vocab_size
        batch = []
        for _ in range(options.batch_size):
            ids = [draw.randrange(size) for _ in range(options.input_len)]
            batch.append({"prompt_token_ids": ids})
        params = _params(options.output_len, options.n, detokenize=not options.disable_detokenize)
        seconds: list[float] = []
        count = options.num_iters_warmup + options.num_iters
        with progress(count, "batch") as advance:
            for _ in range(count):
                begin = time.perf_counter()
                llm.generate(batch, params, use_tqdm=False)
                seconds.append(time.perf_counter() - begin)
                advance()
    measured = seconds[options.num_iters_warmup :]
    percentiles = {str(percent): float(np.percentile(measured, percent)) for percent in PERCENTILES}
    return {"avg_latency": float(np.mean(measured)), "latencies": measured, "percentiles": percentiles}


def throughput(options: ThroughputOptions, dataset: DatasetOptions, parsed: Parsed) -> dict[str, Any]:
    """Measure all requests of a dataset, submitted at once."""
    wanted = prompts(dataset)
    with engine(parsed, seed=dataset.seed) as llm:
        detokenize = not options.disable_detokenize
        params = [_prompt_params(prompt, options.n, detokenize=detokenize) for prompt in wanted]
        begin = time.perf_counter()
        outputs = llm.generate([prompt.text for prompt in wanted], params)
        seconds = time.perf_counter() - begin
    num_input = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "total_num_tokens": num_input + num_output,
        "total_output_tokens": num_output,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (num_input + num_output) / seconds,
        "output_tokens_per_second": num_output / seconds,
    }


def latency_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the latency result as table rows."""
    rows = [("Mean (s)", f"{result['avg_latency']:.4f}")]
    for percent, value in result["percentiles"].items():
        rows.append((f"P{percent} (s)", f"{value:.4f}"))
    return rows


def throughput_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the throughput result as table rows."""
    return [
        ("Requests", str(result["num_requests"])),
        ("Duration (s)", f"{result['elapsed_time']:.2f}"),
        ("Requests a second", f"{result['requests_per_second']:.2f}"),
        ("All tokens a second", f"{result['tokens_per_second']:.2f}"),
        ("Output tokens a second", f"{result['output_tokens_per_second']:.2f}"),
    ]


def _prompt_params(prompt: Prompt, n: int, *, detokenize: bool) -> SamplingParams:
    params = _params(prompt.max_tokens, n, detokenize=detokenize)
    form = prompt.extra.get("response_format")
    if form is not None:
        params.structured_outputs = StructuredOutputsParams(json=form["json_schema"]["schema"])
        params.ignore_eos = False  # an answer that fits its schema ends by itself
    return params


def _params(max_tokens: int, n: int, *, detokenize: bool) -> SamplingParams:
    """Return vLLM's benchmark parameters: sampled tokens, and always the full length."""
    return SamplingParams(
        n=n, temperature=1.0, top_p=1.0, ignore_eos=True, max_tokens=max_tokens, detokenize=detokenize
    )


def _plain(given: Given | None) -> Any:
    return None if given is None else given.value
