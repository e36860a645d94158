"""`core serve [MODEL] [ARGUMENTS]`.

Owns: the path from command-line words to the server. Never does: resolve or serve itself. Called by: the frame.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from typing import TYPE_CHECKING

from core.version import __version__
from core_apis.server.stop_signals import StopSignals
from core_commands.several.words import is_several

if TYPE_CHECKING:
    from core_config.resolve import Resolution
    from core_supervision.child import EngineProcess

USAGE = "core serve [MODEL] [ARGUMENTS]"
INTRO = (
    "Start an OpenAI-compatible server for MODEL: a GGUF file, a directory or a hub name; unset: the embedded model."
)


def serve(words: list[str]) -> int:
    """Run the server until it is stopped; returns the exit code."""
    with StopSignals() as signals:  # installed before imports, which take time
        from core.commands.words import take_help
        from core_apis.server.process_limits import raise_limits
        from core_observers.output import best_effort_output

        wanted = take_help(words)
        if wanted is not None:
            from core_commands.cli.options import show_engine_help

            show_engine_help(USAGE, INTRO, wanted)
            return 0
        raise_limits()
        with best_effort_output():
            return _serve_several(words, signals) if is_several(words) else _serve(words, signals)
    return 0  # a signal arrived before the server was started


def _serve(words: list[str], signals: StopSignals) -> int:
    process: EngineProcess | None = None
    _say(f"Starting version {__version__}.")
    try:
        from core_commands.client.early_engine import early_values, spawn_early

        with signals.held():
            process = spawn_early(early_values(words))  # it imports its modules while the arguments are parsed here
        resolution = resolve_words(words)
        from core_config.ranks import is_launched

        if is_launched(resolution.engine):
            resolution = _met(resolution)
        if resolution.server.node_rank:
            process.discard()
            return _serve_node(resolution)
        if resolution.server.num_servers > 1:
            from core_apis.processes.several_servers import serve_ports

            return serve_ports(resolution, words, process, signals)
        if resolution.server.is_one_of_several:
            from core_apis.processes.several_servers import end_with_starter

            end_with_starter()
        remote = resolution.server.remote
        if remote is not None and remote.on_ray:
            return _serve_on_ray(resolution, process, signals)
        if remote is not None and remote.role == "engine":
            from core_apis.remote.engine_server import serve_engine

            return serve_engine(resolution, process, signals)
        from core_apis.server.launch import serve as launch

        return launch(resolution, process, signals)
    finally:
        if process is not None:
            process.discard()


def _serve_several(words: list[str], signals: StopSignals) -> int:
    from core_commands.several.launch import serve_several

    _say(f"Starting version {__version__}.")
    return serve_several(words, signals)


def _serve_on_ray(resolution: Resolution, process: EngineProcess, signals: StopSignals) -> int:
    """Serve with engines that Ray starts, or be one of these."""
    remote = resolution.server.remote
    assert remote is not None
    if remote.role == "engine":
        from core_apis.processes.several_servers import end_with_starter
        from core_apis.remote.engine_server import serve_engine

        end_with_starter()
        return serve_engine(resolution, process, signals)
    from core_apis.remote.ray_engines import RayEngines
    from core_apis.server.launch import serve as launch

    with RayEngines(resolution) as engines:
        return launch(engines.resolution, process, signals)


def _met(resolution: Resolution) -> Resolution:
    """Return the configuration with the place where the ranks meet that a launcher has started."""
    from core_distributed.launched.meeting import meet

    launched = meet(resolution.engine, resolution.server.node_rank)  # its key stays open as long as this process
    return dataclasses.replace(resolution, engine=launched.config)


def _serve_node(resolution: Resolution) -> int:
    """Compute for the engine of another host until a signal (exit code 0), or until none comes (1)."""
    from core.api.errors import CoreError, UserError
    from core_distributed.hosts.node import serve_node
    from core_observers.logging import setup_logging

    number = resolution.server.node_rank
    setup_logging(process=f"node {number}", config=resolution.server.log_config)
    try:
        serve_node(resolution.engine, number)
    except UserError:
        raise
    except CoreError as error:
        print(f"core serve: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def resolve_words(words: list[str]) -> Resolution:
    """Return the configuration that the words of the command line ask for, and print its warnings."""
    from core_commands.cli.options import parse_engine_arguments
    from core_config.resolve import resolve

    parsed = parse_engine_arguments(words)
    resolution = resolve(parsed.values, context="serve", problems=parsed.problems)
    for warning in [*parsed.warnings, *resolution.warnings]:
        _say(warning, logging.WARNING)
    return resolution


def _say(text: str, level: int = logging.INFO) -> None:
    """Print a line before logging is set up."""
    from core.logging_setup import log_line

    print(log_line(text, level, "server"), file=sys.stderr, flush=True)
