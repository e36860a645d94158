"""Arguments of `core tune`.

Owns: declarations only. Called by: the command.
"""

import math
from typing import Annotated

from core.args.arg import Arg
from core_commands.bench.dataset_options import DatasetOptions


class TuneOptions(DatasetOptions, frozen=True, kw_only=True):
    """Options of tune."""

    dataset: Annotated[
        str | None,
        Arg(
            "A dataset's name, as --dataset-name, or a file: prompts a line each, or conversations in ShareGPT's form.",
            metavar="NAME|FILE",
        ),
    ] = None
    goal: Annotated[
        list[str] | None,
        Arg(
            "Limits in ms: ttft, itl, tpot, e2el. Unset: output tokens a second alone count.",
            metavar="METRIC:MS",
            commas=True,
        ),
    ] = None
    percentile: Annotated[float, Arg("Percentile of the requests, or gaps, that keeps to a limit.", gt=0, le=100)] = (
        90.0
    )
    minutes: Annotated[float, Arg("Limit on the time of all trials.", gt=0, le=24 * 60)] = 5.0
    output: Annotated[str | None, Arg("File for --config with what helps.", short=("o",), metavar="FILE")] = None
    json: Annotated[bool, Arg("Print the result as JSON.")] = False
    only: Annotated[
        list[str] | None, Arg("Arguments to try. Unset: all that may help.", metavar="ARGUMENT", commas=True)
    ] = None
    allow_other_bits: Annotated[bool, Arg("Write also arguments with which answers have other bits, if they help.")] = (
        False
    )
    least_effect: Annotated[float, Arg("Percent below which an effect is not worth an argument.", ge=0, le=100)] = 1.0
    backend: Annotated[
        str,
        Arg("openai for /v1/completions, openai-chat for /v1/chat/completions.", choices=("openai", "openai-chat")),
    ] = "openai"
    request_rate: Annotated[
        float, Arg("Requests a second; needs a goal. inf: as fast as they end.", ge=1e-6, words=(("inf", math.inf),))
    ] = math.inf
    burstiness: Annotated[
        float, Arg("1 for a Poisson process; less for bursts, more for even gaps.", ge=1e-3, le=1e6)
    ] = 1.0
    max_concurrency: Annotated[
        int | None, Arg("Most requests at once. Unset: 8, or no limit at a --request-rate.", ge=1, le=100_000)
    ] = None
    ignore_eos: Annotated[bool, Arg("Answers are as long as asked for.")] = False
    num_prompts: Annotated[
        int, Arg("Most requests of one measurement; it has as many as take some seconds.", human=True, ge=1, le=100_000)
    ] = 1000
    start_timeout: Annotated[float, Arg("Seconds that a server may take to start.", gt=0, le=36_000)] = 300.0
