"""Benchmark of a server under load.

Owns: the order of steps (availability, warm-up, load, metrics), and the result's head. Never does: print. Called by:
`core bench serve`.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from core.api.errors import UserError
from core_commands.bench.arrivals import Rates, arrival_times
from core_commands.bench.datasets import prompts
from core_commands.bench.figures import figures, parse_limits, parse_percentiles
from core_commands.bench.load import Outcome, Shape, send, send_all
from core_commands.bench.progress import progress
from core_commands.bench.report import DETAILS
from core_commands.bench.serve_options import METRICS, SAMPLING, ServeOptions
from core_commands.bench.workload import Prompt
from core_commands.client.endpoint import Endpoint, EndpointError
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.client.served_names import NoListError, served_name

PATHS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
"""The request path of each backend; all of them use OpenAI's API."""
MOST_ERRORS = 3
"""Limit on the distinct errors reported."""
READY_CHECK_SECONDS = 0.5


class MeasurementError(EndpointError):
    """Raised when nothing could be measured; the message says why."""


async def measure(options: ServeOptions) -> dict[str, Any]:
    """Run one load and return its result. Raises UserError, EndpointError, MeasurementError."""
    rates(options)
    limits = parse_limits(options.goodput or ())
    percentiles = parse_percentiles(options.metric_percentiles)
    metadata = _metadata(options)
    headers = pairs(options.header or (), "--header")
    wanted = prompts(options)
    key = options.api_key or os.environ.get("CORE_API_KEY")
    url = options.base_url or f"http://{options.host}:{options.port}"
    endpoint = HttpEndpoint(url, key, verify=not options.insecure)
    try:
        model = await _model(endpoint, options)
        shape = _shape(options, model, headers)
        await _warm_up(endpoint, shape, wanted, options.num_warmups)
        outcomes, seconds = await _load(endpoint, shape, wanted, options)
    finally:
        await endpoint.close()
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if len(errors) == len(outcomes):
        raise MeasurementError(f"No request went well: {errors[0]}")
    result = _head(options, shape.path, model, url) | metadata
    result |= figures(outcomes, seconds, limits, options.percentile_metrics, percentiles)
    result["errors"] = list(dict.fromkeys(errors))[:MOST_ERRORS]
    return result | (_details(outcomes) if options.save_detailed else {})


def rates(options: ServeOptions) -> Rates:
    """Return the requested rate, or its rise. Raises UserError."""
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy.")
        return Rates(options.request_rate, options.request_rate)
    if start is None or end is None or not math.isinf(options.request_rate):
        raise UserError(
            "--ramp-up-strategy: needs --ramp-up-start-rps and --ramp-up-end-rps, and no --request-rate beside them."
        )
    return Rates(start, end, exponential=options.ramp_up_strategy == "exponential")


def pairs(words: Sequence[str], flag: str) -> dict[str, str]:
    """Parse NAME=VALUE words. Raises UserError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UserError(f"{flag} {word}: expected NAME=VALUE.")
        found[name] = value
    return found


async def _model(endpoint: Endpoint, options: ServeOptions) -> str:
    """Return the model's name; waits for a server that does not answer yet, up to the requested time."""
    deadline = time.monotonic() + options.ready_check_timeout_sec
    while True:
        try:
            return await served_name(endpoint, options.model)
        except NoListError:
            raise
        except EndpointError:
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(READY_CHECK_SECONDS)


def _shape(options: ServeOptions, model: str, headers: dict[str, str]) -> Shape:
    fields: dict[str, Any] = {"model": model}
    for name in SAMPLING:
        value = getattr(options, name)
        if value is not None:
            fields[name] = value
    if options.ignore_eos:
        fields["ignore_eos"] = True
    fields |= options.extra_body or {}
    path = options.endpoint or PATHS[options.backend]
    return Shape(path, fields, headers, keeps_text=options.save_detailed)


async def _warm_up(endpoint: Endpoint, shape: Shape, wanted: Sequence[Prompt], count: int) -> None:
    """Send one request that must succeed, and `count` more. Raises MeasurementError."""
    first = await send(endpoint, shape, shape.body(wanted[0]))
    if first.error:
        raise MeasurementError(f"The first request failed, so nothing was measured: {first.error}")
    warm = [wanted[number % len(wanted)] for number in range(count)]
    if warm:
        await send_all(endpoint, shape, warm, [0.0] * count)


async def _load(
    endpoint: Endpoint, shape: Shape, wanted: Sequence[Prompt], options: ServeOptions
) -> tuple[list[Outcome], float]:
    times = arrival_times(len(wanted), rates(options), options.burstiness, options.seed)
    gc.collect()
    gc.disable()  # a garbage collection in the middle would look like a slow token
    try:
        with progress(len(wanted), "request", shown=not options.disable_tqdm) as advance:
            return await send_all(endpoint, shape, wanted, times, options.max_concurrency, advance)
    finally:
        gc.enable()


def _metadata(options: ServeOptions) -> dict[str, str]:
    """Return the user's own fields. Raises UserError for a field that every result has."""
    found = pairs(options.metadata or (), "--metadata")
    figured = figures((), 1.0, {}, METRICS, parse_percentiles(options.metric_percentiles))
    taken = {*_head(options, "", "", ""), *figured, *DETAILS, "errors"}
    for name in found:
        if name in taken:
            raise UserError(f"--metadata {name}: every result has a field of this name; choose another one.")
    return found


def _head(options: ServeOptions, path: str, model: str, url: str) -> dict[str, Any]:
    """Return the description of the measurement."""
    rate: float | str = "inf" if math.isinf(options.request_rate) else options.request_rate
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "endpoint": path,
        "base_url": url,
        "model_id": model,
        "dataset_name": options.dataset_name,
        "num_prompts": options.num_prompts,
        "request_rate": rate,
        "burstiness": options.burstiness,
        "ramp_up_strategy": options.ramp_up_strategy,
        "ramp_up_start_rps": options.ramp_up_start_rps,
        "ramp_up_end_rps": options.ramp_up_end_rps,
        "max_concurrency": options.max_concurrency,
        "seed": options.seed,
    }


def _details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the times of each request, in seconds."""
    begin = min((outcome.sent for outcome in outcomes), default=0.0)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts")
    }
    for outcome in outcomes:
        arrivals = outcome.arrivals
        gaps = [after - before for before, after in itertools.pairwise(arrivals)]
        rows["input_lens"].append(outcome.prompt_tokens)
        rows["output_lens"].append(outcome.output_tokens)
        rows["start_times"].append(outcome.sent - begin)
        rows["ttfts"].append(arrivals[0] - outcome.sent if arrivals else 0.0)
        rows["itls"].append(gaps)
        rows["generated_texts"].append(outcome.text)
    rows["request_errors"] = [outcome.error for outcome in outcomes]
    return dict(rows)


def run(options: ServeOptions) -> dict[str, Any]:
    """Run `measure` on its own event loop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):  # not available on every system
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(measure(options))
