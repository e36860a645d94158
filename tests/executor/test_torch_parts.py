"""Parts of torch that an engine process imports only when something uses them."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from core.api.config import EngineConfig, ResolvedPlugin
from core.processes import child_environment
from core_observers.observer_settings import WORKER_EXTENSION
from core_runtime.executor.torch_parts import needs_all
from tests.engine.fakes import make_config

EARLY = """
import sys
from core.engine.executors import import_executor
import_executor(None)
import torch

def waiting():
    return [name for name in sys.modules if type(sys.modules[name]).__name__ == "_PutOff"]

first = torch.ones(2, 3) @ torch.ones(3, 2) + torch.arange(4).view(2, 2).cumsum(0)
print(sorted(waiting()), int(first.sum()))
"""
WAITING = "['torch._meta_registrations', 'torch.distributed._meta_registrations', 'torch.export'] 19"


def run(code: str) -> list[str]:
    command = [sys.executable, "-c", EARLY + code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=child_environment())
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


def test_an_engine_process_computes_without_them_and_a_name_of_one_imports_it() -> None:
    before, named, after = run("print(torch.export.export.__name__)\nprint(waiting())")
    assert before == WAITING
    assert named == "export"
    assert "torch.export" not in after


def test_whoever_imports_more_of_torch_has_them_imported_first() -> None:
    # Imported before torch._meta_registrations, this module would register each of its operations twice.
    code = "import torch._decomp\nprint(waiting(), torch._decomp.__spec__.loader.__class__.__name__)\n"
    code += "import torch._inductor.decomposition\nprint(len(torch._decomp.meta_table) > 100)"
    before, after, registered = run(code)
    assert before == WAITING
    assert after == "[] SourceFileLoader"
    assert registered == "True"


def ours() -> EngineConfig:
    config = make_config()
    row = ResolvedPlugin(kind="executor", name="torch", target="x:y", distribution="core-engine-executors")
    return msgspec.structs.replace(config, plugins=msgspec.structs.replace(config.plugins, table=(row,)))


def with_plugins(**changes: object) -> EngineConfig:
    config = ours()
    return msgspec.structs.replace(config, plugins=msgspec.structs.replace(config.plugins, **changes))


def test_an_engine_of_the_projects_own_code_needs_no_more() -> None:
    assert not needs_all(ours())


@pytest.mark.parametrize(
    "config",
    [
        with_plugins(table=(ResolvedPlugin(kind="loader", name="mine", target="x:y", distribution="mine"),)),
        with_plugins(table=(ResolvedPlugin(kind="loader", name="mine", target="file:mine.py"),)),
        with_plugins(logits_processors=("package.module:Mine",)),
        with_plugins(arguments={WORKER_EXTENSION: {"cls": "mine.Extension"}}),
        msgspec.structs.replace(ours(), model=msgspec.structs.replace(ours().model, implementation="transformers")),
    ],
)
def test_code_of_third_parties_has_all_of_torch(config: EngineConfig) -> None:
    assert needs_all(config)
