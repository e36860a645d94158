"""`core serve` as an API server, or as an engine alone, over a fake model.

Called as `api_server PORT NAME=VALUE...` or `engine PORT NAME=VALUE...`.
Names: patience_s, key_file, delay_s, numerics, max_model_len, address, sleeps, shutdown_timeout; of a group: size, own (engines
of this command), first (rank of the first of them), kv_port and kv_peer (of engines that hand over requests, as moving is said
to be faster than computing).
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec

from core.api.config import RestartConfig
from core.commands.main import main
from core_apis.remote import agreement, api_server
from core_commands.cli import serve as command
from core_config.served.server_config import RemoteSettings, ServerConfig
from core_frontend.group import moves
from core_frontend.group.comparison import Comparison
from core_supervision.child import EngineProcess
from core_supervision.link.shared_file import SharedFiles
from tests.engine.fakes import TARGET, byte_source, make_config
from tests.group.roles import with_role

ENGINE_TESTS = str(Path(__file__).parents[1] / "engine")
spawn = EngineProcess.spawn
role, port, *words = sys.argv[1:]
options = dict(word.split("=", 1) for word in words)


def spawn_fake(executor: str | None = None, files: SharedFiles | None = None) -> EngineProcess:
    return spawn(TARGET, files)


def resolve(words: list[str]) -> object:
    length = int(options.get("max_model_len", 256))
    fake = {"delay_s": float(options.get("delay_s", 0.01))}
    own, first = int(options.get("own", 0)), int(options.get("first", 0))
    config = make_config(options=fake, max_model_len=length, restarts=RestartConfig())
    config = msgspec.structs.replace(
        config, data_parallel_size=max(own, 1), data_parallel_rank=first, sleeps="sleeps" in options
    )
    if "kv_port" in options:
        config = with_role(config, int(options["kv_port"]), (options["kv_peer"],))
    remote = RemoteSettings(
        role=role,  # type: ignore[arg-type]
        address=options.get("address", "127.0.0.1"),
        group_size=int(options.get("size", 1)),
        num_own=own if role == "api_server" else 0,
        port=int(port),
        key_file=options.get("key_file"),
        patience_s=float(options.get("patience_s", 30.0)),
    )
    return SimpleNamespace(
        engine=config,
        server=ServerConfig(port=0, shutdown_timeout=float(options.get("shutdown_timeout", 1.0)), remote=remote),
        manifest=SimpleNamespace(tokenizer=byte_source()),
        arguments={"max_model_len": (length, "command line", "")},
        given={"max_model_len": length} if "max_model_len" in options else {},
        numerics=options.get("numerics", "fake"),
    )


os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ENGINE_TESTS, os.environ.get("PYTHONPATH")]))
EngineProcess.spawn = spawn_fake  # type: ignore[method-assign,assignment]
command.resolve_words = resolve  # type: ignore[assignment]
moves.compare = lambda *facts, **more: Comparison(2.0, 0.25)  # type: ignore[attr-defined]
agreement.explained = api_server.explained = lambda resolution: {"arguments": {}}  # type: ignore[attr-defined]
sys.exit(main(["serve"]))
