"""`core serve --api-server-count 2` over a fake model in a real engine process, or in as many as the first word says.

The second word, if there is one, is how many of these run at the start.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec

from core.api.config import RestartConfig
from core.commands.main import main
from core_apis.processes import supervisor
from core_commands.cli import serve as command
from core_config.served.server_config import ServerConfig
from core_supervision.child import EngineProcess
from core_supervision.link.shared_file import SharedFiles
from tests.engine.fakes import TARGET, byte_source, make_config

ENGINE_TESTS = str(Path(__file__).parents[1] / "engine")
spawn = EngineProcess.spawn


def spawn_fake(executor: str | None = None, files: SharedFiles | None = None) -> EngineProcess:
    return spawn(TARGET, files)


def resolve(words: list[str]) -> object:
    queue = {"max_num_queued_reqs": 5}
    config = make_config(options={"delay_s": 0.01}, max_model_len=256, scheduler=queue, restarts=RestartConfig())
    size, started = (*map(int, sys.argv[1:]), *(1, 0)[len(sys.argv) - 1 :])
    config = msgspec.structs.replace(config, data_parallel_size=size, data_parallel_started=started)
    server = ServerConfig(port=0, api_server_count=2, shutdown_timeout=20.0)
    return SimpleNamespace(engine=config, server=server, manifest=SimpleNamespace(tokenizer=byte_source()))


os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ENGINE_TESTS, os.environ.get("PYTHONPATH")]))
EngineProcess.spawn = spawn_fake  # type: ignore[method-assign,assignment]
command.resolve_words = resolve  # type: ignore[assignment]
supervisor.explained = lambda resolution: {}  # type: ignore[attr-defined]
sys.exit(main(["serve"]))
