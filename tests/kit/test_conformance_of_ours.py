"""Every plugin of ours keeps the promises that the kit checks, as a stranger's package must."""

import pytest
from gguf import GGMLQuantizationType

from core.plugin.discovery import discover
from core.plugin.distributions import is_own
from core_kit import cases
from core_kit.checkpoints import write_checkpoint
from core_kit.checks import general
from core_kit.worker import Answer, Task
from core_runtime.models.tensors.shards import DEFAULT
from tests.adapters.made import converted, save_adapter
from tests.kit.forked_workers import ForkedWorkers
from tests.kv.lmcache_server import LMCacheServer
from tests.kv.test_peers import free_port
from tests.loaders.gguf_files import write_gguf

OURS = [(row.kind, row.name) for row in discover() if is_own(row.distribution)]
ALL = [pytest.param(case, id=f"{kind}.{name}: {case}") for kind, name in OURS for case in cases(kind, name)]

MADE_UP = "bench"
"""A connector whose pages are nobody's, so that it keeps no promise about them."""
FABRICS = {"nixl": "nixl_cu12", "mooncake": "mooncake"}
"""Connectors whose package is no dependency of the tests → its module."""


@pytest.fixture(scope="session")
def gguf_pair(tmp_path_factory):
    """A GGUF file in Q8_0, and the same values in F32."""
    folder = tmp_path_factory.mktemp("gguf_pair")
    return (write_gguf(folder / "model-q8.gguf"), write_gguf(folder / "model-f32.gguf", quant=GGMLQuantizationType.F32))


@pytest.fixture
def adapters(tiny_llama, tmp_path):
    """An adapter as each format has it, by the format's name."""
    folder = save_adapter(tiny_llama, tmp_path / "peft")
    return {"peft": folder, "gguf": converted(folder, tmp_path / "adapter.gguf", 16.0)}


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """A checkpoint in the one file that `core save-sharded` would write."""
    folder = write_checkpoint(tmp_path_factory.mktemp("shards") / "model")
    (folder / "model.safetensors").rename(folder / DEFAULT.format(rank=0, part=0))
    return folder


@pytest.fixture(scope="module")
def workers():
    """Parents of the processes that load plugins, and of those that only import their manifests."""
    both = {load: ForkedWorkers(load=load) for load in (True, False)}
    yield both
    for parent in both.values():
        parent.close()


@pytest.fixture
def store():
    """A server that speaks as LMCache's does."""
    server = LMCacheServer()
    yield server
    server.close()


@pytest.mark.parametrize("case", ALL)
def test_ours(case, request, workers, monkeypatch):
    def ask(task: Task) -> Answer:
        return workers[task.load].ask(task)

    monkeypatch.setattr(general, "ask", ask)
    subject = case.subject
    if subject.name in ("cpu_native", "cpu_paged"):
        pytest.importorskip("core_platforms.cpu._native")
    if subject.name == "runai_streamer_sharded":
        subject.model = str(request.getfixturevalue("shards"))
    if subject.kind == "kv_connector" and subject.name in ("file", "shm"):
        subject.arguments = {"directory": str(request.getfixturevalue("tmp_path"))}
    if subject.kind == "kv_connector" and subject.name == MADE_UP:
        if case.run.__module__ != general.__name__:
            pytest.skip("its pages are made up")
        subject.arguments = {"seed": 1}
    if subject.kind == "kv_connector" and subject.name == "lmcache":
        subject.arguments = {"url": request.getfixturevalue("store").url}
    if subject.kind == "kv_connector" and subject.name == "mooncake_store":
        pytest.skip("it needs a master; make test-stores starts one")
    if subject.kind == "kv_connector" and subject.name == "tcp":
        subject.arguments = {"listen": f"127.0.0.1:{free_port()}"}
    if subject.kind == "executor" and subject.name == "ray" and case.run.__module__ != general.__name__:
        pytest.importorskip("ray", reason="make test-ray installs it and starts a cluster")
    if subject.kind == "kv_connector" and subject.name in FABRICS:
        pytest.importorskip(FABRICS[subject.name], reason="make test-fabrics installs it")
        subject.arguments = {"role": "kv_producer", "listen": f"127.0.0.1:{free_port()}"}
    if subject.kind == "adapter":
        subject.model = str(request.getfixturevalue("adapters")[subject.name])
    elif subject.name == "gguf" and subject.kind != "processor":
        model, reference = request.getfixturevalue("gguf_pair")
        subject.model, subject.reference = str(model), str(reference)
    case()
