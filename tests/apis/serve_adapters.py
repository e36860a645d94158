"""`core serve --api-server-count 2 --enable-lora` over a fake model with adapters in a real engine process:
`serve_adapters.py DIRECTORY`.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec

from core.api.config import RestartConfig, WeightTransferConfig
from core.commands.main import main
from core_apis.processes import supervisor
from core_commands.cli import serve as command
from core_config.served.server_config import AdapterSettings, ServerConfig
from core_supervision.child import EngineProcess
from core_supervision.link.shared_file import SharedFiles
from tests.engine.adapting import adapting_config, written
from tests.engine.fakes import byte_source

spawn = EngineProcess.spawn


def spawn_fake(executor: str | None = None, files: SharedFiles | None = None) -> EngineProcess:
    return spawn("engine.adapting:AdaptingExecutor", files)


def resolve(words: list[str]) -> object:
    directory = Path(sys.argv[1])
    sources = [written(directory, name) for name in ("sql", "fr")]
    config = adapting_config(*sources, options={"delay_s": 0.01}, max_model_len=256, restarts=RestartConfig())
    config = msgspec.structs.replace(config, weight_transfer=WeightTransferConfig())
    adapters = AdapterSettings(directory=str(directory), is_updated=True)
    server = ServerConfig(port=0, api_server_count=2, shutdown_timeout=20.0, adapters=adapters)
    return SimpleNamespace(engine=config, server=server, manifest=SimpleNamespace(tokenizer=byte_source()))


if __name__ == "__main__":
    EngineProcess.spawn = spawn_fake  # type: ignore[method-assign,assignment]
    command.resolve_words = resolve  # type: ignore[assignment]
    supervisor.explained = lambda resolution: {}  # type: ignore[attr-defined]
    sys.exit(main(["serve"]))
