"""Arguments of `core bench serve`, under vLLM's names.

Owns: declarations, and the reasons why some flags of vLLM are rejected. Called by: the command, the measurement.
"""

import math
from typing import Annotated, Any

import msgspec

from core.args.arg import Arg
from core_commands.bench.dataset_options import DatasetOptions

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
"""Options that become fields of each request's body."""
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
"""Flags of vLLM that bench serve rejects, with the reason."""
METRICS = ("ttft", "tpot", "itl", "e2el")


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
    request_rate: Annotated[float, Arg("Requests a second; inf: all at once.", ge=1e-6, words=(("inf", math.inf),))] = (
        math.inf
    )
    burstiness: Annotated[
        float, Arg("1 for a Poisson process; less for bursts, more for even gaps.", ge=1e-3, le=1e6)
    ] = 1.0
    ramp_up_strategy: Annotated[
        str | None, Arg("How the rate rises from the first request to the last.", choices=("linear", "exponential"))
    ] = None
    ramp_up_start_rps: Annotated[float | None, Arg("Rate at the beginning.", ge=1e-6)] = None
    ramp_up_end_rps: Annotated[float | None, Arg("Rate at the end.", ge=1e-6)] = None
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
