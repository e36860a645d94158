"""Arguments of `core bench sweep` and `core bench plot`.

Owns: declarations only. Called by: these commands.
"""

from typing import Annotated

import msgspec

from core.args.arg import Arg


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
    sla: Annotated[
        list[str] | None,
        Arg(
            "Search the highest load that keeps to these limits of a result's fields, such as p99_ttft_ms<=500 (quoted).",
            metavar="LIMIT",
            commas=True,
        ),
    ] = None
    sla_variable: Annotated[
        str, Arg("Argument of the measurement that is the load.", choices=("request_rate", "max_concurrency"))
    ] = "request_rate"
    sla_from: Annotated[float, Arg("Lowest load, which is doubled until a limit is broken.", gt=0)] = 1.0
    sla_to: Annotated[float, Arg("Highest load that is tried.", gt=0)] = 1024.0
    dry_run: Annotated[bool, Arg("Print the commands only.")] = False
    resume: Annotated[bool, Arg("Leave out the runs whose results are in the directory.")] = False


class PlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of bench plot."""

    output: Annotated[str, Arg("The picture, as SVG.", short=("o",), metavar="FILE")] = "bench.svg"
    x: Annotated[str | None, Arg("Field on the horizontal axis. Unset: request_rate.")] = None
    y: Annotated[
        list[str] | None,
        Arg("Fields, a chart each. Unset: output_throughput, median_ttft_ms and p99_itl_ms.", commas=True),
    ] = None
    pareto: Annotated[
        bool,
        Arg(
            "Draw only points that no other beats in both fields; fields that end with _ms or _s are better when small. Unset "
            "fields are then output_throughput over output_throughput_per_user."
        ),
    ] = False
    by: Annotated[list[str] | None, Arg("Fields whose values make a line each.", commas=True)] = None
