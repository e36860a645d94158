"""The arguments of `core bench`, under vLLM's names.

Owns: declarations only. Called by: the commands, datasets and the load.
"""

import math
from typing import Annotated, Any

import msgspec

from core.args.arg import Arg

NAMES = ("random", "custom", "sharegpt", "prefix_repetition", "json")
OTHER_NAMES = ("hf", "burstgpt", "sonnet", "random-mm", "random-rerank")
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Options that are fields of each request's body."""
REFUSED_FLAGS = {
    "--tokenizer": "no tokenizer is loaded: the server counts tokens",
    "--tokenizer-mode": "no tokenizer is loaded: the server counts tokens",
    "--trust-remote-code": "no tokenizer is loaded: the server counts tokens",
    "--skip-chat-template": "--backend openai sends texts as they are, openai-chat sends messages",
    "--use-beam-search": "answers are streamed, and beams are not",
    "--best-of": "answers are streamed, and these are not",
    "--logprobs": "write it into --extra-body",
    "--lora-modules": "one model is measured at a time; name it with --model",
    "--profile": "a profile changes what is measured",
    "--hf-split": "nothing is fetched; save the dataset as a file and use --dataset-name custom",
    "--hf-subset": "nothing is fetched; save the dataset as a file and use --dataset-name custom",
    "--hf-name": "nothing is fetched; save the dataset as a file and use --dataset-name custom",
    "--request-id-prefix": "requests get ids from the server; name others with --header",
}
"""Flags of vLLM's that bench serve does not take, with the reason."""
METRICS = ("ttft", "tpot", "itl", "e2el")


class DatasetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options about prompts."""

    dataset_name: Annotated[
        str,
        Arg(f"Where prompts come from: {', '.join(NAMES)}.", choices=(*NAMES, *OTHER_NAMES), metavar="NAME"),
    ] = "random"
    dataset_path: Annotated[str | None, Arg("File of the datasets custom and sharegpt.", metavar="FILE")] = None
    num_prompts: Annotated[int, Arg("Requests.", human=True, ge=1, le=10_000_000)] = 1000
    seed: Annotated[int, Arg("Equal seeds make equal prompts and arrivals.")] = 0
    input_len: Annotated[int | None, Arg("Tokens of a prompt, about; for any made dataset.", ge=1, le=1 << 24)] = None
    output_len: Annotated[int | None, Arg("Tokens of an answer, for any dataset.", ge=1, le=1 << 24)] = None
    no_oversample: Annotated[bool, Arg("Do not take prompts of a file twice where it has too few.")] = False
    random_input_len: Annotated[int, Arg("random: tokens of a prompt, about.", ge=1, le=1 << 24)] = 1024
    random_output_len: Annotated[int, Arg("random: tokens of an answer.", ge=1, le=1 << 24)] = 128
    random_range_ratio: Annotated[float, Arg("random: both lengths differ by up to this share.", ge=0, le=1)] = 0.0
    random_prefix_len: Annotated[int, Arg("random: tokens that all prompts begin with.", ge=0, le=1 << 24)] = 0
    prefix_repetition_prefix_len: Annotated[int, Arg("prefix_repetition: tokens of a prefix.", ge=0)] = 256
    prefix_repetition_suffix_len: Annotated[int, Arg("prefix_repetition: tokens of an ending.", ge=1)] = 256
    prefix_repetition_num_prefixes: Annotated[int, Arg("prefix_repetition: prefixes.", ge=1)] = 10
    prefix_repetition_output_len: Annotated[int, Arg("prefix_repetition: tokens of an answer.", ge=1)] = 128
    sharegpt_output_len: Annotated[int | None, Arg("sharegpt: tokens of an answer. Unset: the file's.", ge=1)] = None
    custom_output_len: Annotated[
        int | None, Arg("custom: tokens of an answer. Unset: the line's output_tokens.", ge=1)
    ] = 256
    json_schema_path: Annotated[str | None, Arg("json: file with the schema. Unset: a small one.")] = None


class ServeOptions(DatasetOptions, frozen=True, kw_only=True):
    """Options of bench serve."""

    backend: Annotated[
        str,
        Arg(
            "openai for /v1/completions, openai-chat for /v1/chat/completions.",
            choices=("openai", "vllm", "openai-chat"),
        ),
    ] = "openai"
    base_url: Annotated[str | None, Arg("Server: http://HOST:PORT, https://HOST or unix:/PATH.", aliases=("url",))] = (
        None
    )
    host: Annotated[str, Arg("The server's host, without --base-url.")] = "127.0.0.1"
    port: Annotated[int, Arg("The server's port, without --base-url.", ge=1, le=65535)] = 8000
    endpoint: Annotated[str | None, Arg("Path of requests. Unset: the backend's.")] = None
    model: Annotated[
        str | None, Arg("The model's name. Unset: the server's first.", aliases=("served_model_name", "model_name"))
    ] = None
    api_key: Annotated[str | None, Arg("Key of the server. Unset: CORE_API_KEY.", secret=True)] = None
    header: Annotated[list[str] | None, Arg("Further headers.", metavar="NAME=VALUE...")] = None
    insecure: Annotated[bool, Arg("Take any TLS certificate.")] = False
    extra_body: Annotated[dict[str, Any] | None, Arg("Further fields of each request.", metavar="JSON")] = None
    temperature: Annotated[float, Arg("Of each request.", ge=0)] = 0.0
    top_p: Annotated[float | None, Arg("Of each request.", gt=0, le=1)] = None
    top_k: Annotated[int | None, Arg("Of each request.", ge=-1)] = None
    min_p: Annotated[float | None, Arg("Of each request.", ge=0, le=1)] = None
    frequency_penalty: Annotated[float | None, Arg("Of each request.", ge=-2, le=2)] = None
    presence_penalty: Annotated[float | None, Arg("Of each request.", ge=-2, le=2)] = None
    repetition_penalty: Annotated[float | None, Arg("Of each request.", gt=0)] = None
    ignore_eos: Annotated[bool, Arg("Answers are as long as asked for; not every server knows it.")] = False
    request_rate: Annotated[float, Arg("Requests a second; inf: all at once.", gt=0, words=(("inf", math.inf),))] = (
        math.inf
    )
    burstiness: Annotated[float, Arg("1 for a Poisson process; less for bursts, more for even gaps.", gt=0)] = 1.0
    ramp_up_strategy: Annotated[
        str | None, Arg("How the rate rises from the first request to the last.", choices=("linear", "exponential"))
    ] = None
    ramp_up_start_rps: Annotated[float | None, Arg("Rate at the beginning.", gt=0)] = None
    ramp_up_end_rps: Annotated[float | None, Arg("Rate at the end.", gt=0)] = None
    max_concurrency: Annotated[int | None, Arg("Most requests at once; others wait here.", ge=1)] = None
    num_warmups: Annotated[int, Arg("Requests before the measurement.", ge=0)] = 0
    ready_check_timeout_sec: Annotated[float, Arg("Seconds to wait for a server that does not answer yet.", ge=0)] = 0.0
    goodput: Annotated[
        list[str] | None,
        Arg("Limits in ms that a good request keeps: ttft, tpot, e2el.", metavar="METRIC:MS..."),
    ] = None
    percentile_metrics: Annotated[list[str], Arg("Metrics with percentiles.", choices=METRICS, commas=True)] = (
        msgspec.field(default_factory=lambda: list(METRICS))
    )
    metric_percentiles: Annotated[list[str], Arg("Percentiles.", commas=True)] = msgspec.field(
        default_factory=lambda: ["90", "99"]
    )
    disable_tqdm: Annotated[bool, Arg("No progress bar.")] = False
    json: Annotated[bool, Arg("Print the result as JSON.")] = False
    save_result: Annotated[bool, Arg("Write the result to a file.")] = False
    save_detailed: Annotated[bool, Arg("With the times of each request.")] = False
    append_result: Annotated[bool, Arg("Add a line to the file instead of replacing it.")] = False
    metadata: Annotated[list[str] | None, Arg("Further fields of the result.", metavar="NAME=VALUE...")] = None
    result_dir: Annotated[str | None, Arg("Directory of the file.")] = None
    result_filename: Annotated[str | None, Arg("Name of the file. Unset: rate, model and time.")] = None


class OfflineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of measurements without a server."""

    output_json: Annotated[str | None, Arg("File for the result.", metavar="FILE")] = None
    json: Annotated[bool, Arg("Print the result as JSON.")] = False


class LatencyOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench latency."""

    input_len: Annotated[int, Arg("Tokens of each prompt.", ge=1, le=1 << 24)] = 32
    output_len: Annotated[int, Arg("Tokens of each answer.", ge=1, le=1 << 24)] = 128
    batch_size: Annotated[int, Arg("Prompts of a batch.", ge=1, le=1 << 20)] = 8
    n: Annotated[int, Arg("Answers to each prompt.", ge=1)] = 1
    num_iters_warmup: Annotated[int, Arg("Batches before the measurement.", ge=0)] = 10
    num_iters: Annotated[int, Arg("Batches that are measured.", ge=1)] = 30
    disable_detokenize: Annotated[bool, Arg("Do not make texts of the tokens.")] = False


class ThroughputOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench throughput, beside those about prompts."""

    n: Annotated[int, Arg("Answers to each prompt.", ge=1)] = 1
    disable_detokenize: Annotated[bool, Arg("Do not make texts of the tokens.")] = False


class StartupOptions(OfflineOptions, frozen=True, kw_only=True):
    """Options of bench startup."""

    num_iters: Annotated[int, Arg("Starts that are measured, after a first one that is told apart.", ge=1)] = 3


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of bench sweep."""

    output_dir: Annotated[str | None, Arg("Directory of results.", short=("o",), metavar="DIR")] = None
    serve_cmd: Annotated[
        str | None, Arg("Command that starts a server, such as 'core serve MODEL'. Unset: one runs already.")
    ] = None
    serve_params: Annotated[
        str | None, Arg("JSON file: a list of objects with arguments of the server, a start each.", metavar="FILE")
    ] = None
    bench_cmd: Annotated[str, Arg("Command that measures it.")] = "core bench serve"
    bench_params: Annotated[
        str | None, Arg("JSON file: a list of objects with arguments of the measurement.", metavar="FILE")
    ] = None
    num_runs: Annotated[int, Arg("Runs of each combination.", ge=1)] = 3
    server_ready_timeout: Annotated[float, Arg("Seconds that a server may take to start.", gt=0)] = 600.0
    dry_run: Annotated[bool, Arg("Print the commands only.")] = False
    resume: Annotated[bool, Arg("Leave out the runs whose results are in the directory.")] = False


class PlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of bench plot."""

    output: Annotated[str, Arg("The picture, as SVG.", short=("o",), metavar="FILE")] = "bench.svg"
    x: Annotated[str, Arg("Field on the horizontal axis.")] = "request_rate"
    y: Annotated[list[str], Arg("Fields, a chart each.", commas=True)] = msgspec.field(
        default_factory=lambda: ["output_throughput", "median_ttft_ms", "p99_itl_ms"]
    )
    by: Annotated[list[str] | None, Arg("Fields whose values make a line each.", commas=True)] = None
