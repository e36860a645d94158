"""Real servers with adapters, two engines each and a journal: kill -9 of an engine and of everything, and names that come to
stand for other weights.
"""

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.adapters.made import save_adapter
from tests.apis.durable.reading import Reading, read
from tests.apis.durable.test_killed_servers import COMPLETION, Server, serving, told

pytestmark = pytest.mark.slow

NORMS: dict[str, Any] = {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["input_layernorm", "norm"]}
ASKED = {
    "prompt": [1, *range(40, 75)],
    "temperature": 0.8,
    "seed": 3,
    "max_tokens": 60,
    "logprobs": 2,
    "ignore_eos": True,
}
CUT = 9
"""Events that a client reads before the engine or the server dies."""


def body(name: str | None) -> dict[str, Any]:
    return ASKED | ({} if name is None else {"model": name})


def kill_one_engine(server: Server) -> None:
    children = psutil.Process(server.process.pid).children(recursive=True)
    engines = [child for child in children if "core.engine.process" in child.cmdline()]
    assert len(engines) == 2
    engines[0].kill()


def test_streams_of_adapters_go_on_after_every_death(tiny_llama: Path, tmp_path: Path) -> None:
    adapters = {
        "norms": save_adapter(tiny_llama, tmp_path / "norms", seed=2, **NORMS),
        "plain": save_adapter(tiny_llama, tmp_path / "plain", seed=1),
    }
    names = [*adapters, None]
    words = [
        *("--model", str(tiny_llama), "--dtype", "float32", "--data-parallel-size", "2", "--enable-lora"),
        *("--max-model-len", "256", "--max-loras", "2", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(1 << 21)),
        *("--kv-offloading-disk-path", str(tmp_path / "kv"), "--kv-offloading-disk-size", "0.01"),
        *("--lora-modules", *(f"{name}={path}" for name, path in adapters.items())),
    ]
    with serving(tmp_path, *words) as server:
        whole = {name: read(server.http, COMPLETION, body(name), Reading()) for name in names}
        assert len({str(reading.texts()) for reading in whole.values()}) == len(names)
        cut = {name: read(server.http, COMPLETION, body(name), Reading(), CUT) for name in names}
        kill_one_engine(server)
        for name in names:
            read(server.http, COMPLETION, body(name), cut[name], 2 * CUT)
        server.kill()
    with serving(tmp_path, *words) as server:
        for name, reading in cut.items():
            read(server.http, COMPLETION, body(name), reading)
            reading.check_numbers()
            assert told(reading) == told(whole[name]), name
        last = read(server.http, COMPLETION, body("norms"), Reading(), CUT)
        server.kill()
    for path in adapters["plain"].iterdir():  # the name and the path of the norms now stand for the other weights
        (adapters["norms"] / path.name).write_bytes(path.read_bytes())
    with serving(tmp_path, *words) as server:
        read(server.http, COMPLETION, body("norms"), last)
        assert "the adapter with the digest" in last.events[-1].body["error"]["message"]
        other = read(server.http, COMPLETION, body("norms"), Reading())
        assert told(other) == told(whole["plain"])
