"""A server of this installation for one command, on a port of 127.0.0.1.

Owns: its configuration file, its log, and that it ends with this command, however the command ends. Never does: send it a
request. Called by: `core tune`, `core bench card`, `core diff`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from core.processes import child_environment, python_command
from core_commands.client.server_process import free_port, running, until_ready

MEMBER: Final = "core_commands.several.member"
"""The module of a server that ends with the command that started it."""
KEYS: Final = ("CORE_API_KEY", "CORE_ADMIN_API_KEY")
"""Variables that would give the server keys, although nobody else uses it."""
ELSEWHERE: Final = (
    "config", "host", "port", "uds", "api_key", "admin_api_key", "root_path", "middleware", "ssl_keyfile", "ssl_certfile",
    "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh", "request_journal", "record_traffic",
    "batch_directory", "receipt_key",
)  # fmt: skip
"""Arguments about a server's address, its keys and its own files, which such a server does not get."""


@contextmanager
def own_server(values: Mapping[str, Any], directory: Path, number: int, seconds: float) -> Iterator[str]:
    """Run a server inside the context and yield its url, as `own_process` does."""
    with own_process(values, directory, number, seconds) as (url, _):
        yield url


@contextmanager
def own_process(values: Mapping[str, Any], directory: Path, number: int, seconds: float) -> Iterator[tuple[str, int]]:
    """Run a server with these arguments inside the context and yield its url and process id. Raises ServerError if it does not
    start.

    directory: for file and log, which nobody else may read. number: of the server in it. seconds: that it may take to start.
    """
    config = directory / f"server{number}.yaml"
    log = directory / f"server{number}.log"
    config.write_text(as_config({name: value for name, value in values.items() if name not in ELSEWHERE}))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = python_command(MEMBER, "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    environment = {name: value for name, value in child_environment().items() if name not in KEYS}
    with log.open("wb") as output, running(command, output, lifeline=True, environment=environment) as process:
        asyncio.run(until_ready(url, process, seconds, log))
        yield url, process.pid


def as_config(values: Mapping[str, Any]) -> str:
    """Return arguments as a configuration file."""
    import yaml

    plain = msgspec.to_builtins(dict(values))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=False)
