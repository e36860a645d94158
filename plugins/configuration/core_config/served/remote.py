"""The connection between an API server and engines of other commands.

Owns: `RemoteSettings` from the arguments. Never does: open a socket.
Called by: the server's settings, API server and engine server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.api.errors import ConfigError, UserError
from core_config.arguments.sources import Merged
from core_config.rules.data_parallel import waits_for_others
from core_config.served.server_config import RemoteSettings, ServerConfig
from core_supervision.link.secured import is_loopback, read_secret

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 29550


def remote_settings(merged: Merged, problems: list[str]) -> RemoteSettings | None:
    """Return the settings, None for a server with engines of its own alone. Sentences about problems are added to
    `problems`.
    """
    if merged.value("node_rank"):
        return None
    is_engine = merged.value("headless")
    local = merged.value("data_parallel_size_local")
    if not is_engine and not waits_for_others({name: merged.value(name) for name in merged.values}):
        return None
    if is_engine and local == 0:
        problems.append(
            "--headless and --data-parallel-size-local 0: the first asks for an engine alone, the second for none; give one."
        )
        return None
    key_file = merged.value("engine_key_file")
    settings = RemoteSettings(
        role="engine" if is_engine else "api_server",
        address=merged.value("data_parallel_address") or DEFAULT_ADDRESS,
        port=merged.value("data_parallel_rpc_port") or DEFAULT_PORT,
        key_file=None if key_file is None else str(Path(key_file).expanduser().absolute()),
        patience_s=merged.value("engine_connect_timeout"),
        group_size=merged.value("data_parallel_size"),
        num_own=0 if is_engine else local,
        on_ray=merged.value("data_parallel_backend") == "ray",
    )
    problems += _key_problems(settings)
    return settings


def _key_problems(settings: RemoteSettings) -> Sequence[str]:
    """Return sentences about a key that cannot be read, or that is missing where other machines reach the address."""
    if settings.key_file is not None:
        try:
            read_secret(settings.key_file)
        except ConfigError as error:
            return error.problems
        return ()
    # Engines that Ray starts get the address and a key from their server.
    if is_loopback(settings.address) or (settings.on_ray and settings.role == "api_server"):
        return ()
    return (
        f"--data-parallel-address {settings.address}: other machines reach it, so whoever does could pass for an engine "
        "and read all prompts; give API server and engine the same --engine-key-file, or use 127.0.0.1.",
    )


def refuse_remote(server: ServerConfig) -> None:
    """Raise UserError for a command that needs an engine of its own."""
    if server.node_rank:
        raise UserError(f"--node-rank {server.node_rank}: only `core serve` computes for the engine of another node.")
    if server.num_servers > 1 or server.is_one_of_several:
        raise UserError("--data-parallel-multi-port-external-lb: only `core serve` starts servers; leave it out.")
    if server.remote is not None:
        flag = "--headless" if server.remote.role == "engine" else f"--data-parallel-size-local {server.remote.num_own}"
        raise UserError(f"{flag}: only `core serve` parts API server and engine; leave it out.")
