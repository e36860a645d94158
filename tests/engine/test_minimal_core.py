"""The engine loop imports nothing optional: neither supervision, observers and frontend nor anything above them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import core

ROOT = Path(core.__file__).parent

LOOP = frozenset({
    "calls", "clients", "composition", "connection", "core", "engine_calls", "executor", "executor_calls", "faults", "gate",
    "greeting", "inproc", "ledger", "loop", "observer", "process", "scheduling", "sequences", "shared_file",
    "socket_directory", "step_queue", "step_runner", "token_ids", "turns", "utilities", "wire", "zmq_client",
})  # fmt: skip
"""Modules of `core.engine` that belong to the minimal core."""

BELOW = ("core.api", "core.args", "core.plugin", "core.scheduler", "core.kv")
TOP_LEVEL = frozenset(
    {
        "core.anonymous_file",
        "core.log_repeats",
        "core.logging_setup",
        "core.own_directory",
        "core.processes",
        "core.version",
    }
)
OPTIONAL = (
    *(f"core.kv.{name}" for name in ("block_saver", "event_publisher", "events", "misses", "past", "residency")),
    *(f"core.api.{name}" for name in ("decoder_spec", "draft_input", "draft_spec", "local_spec", "mixer_parts")),
    *(f"core.api.{name}" for name in ("block_", "model_part", "module_spec", "pooling_head", "vllm_config")),
)  # fmt: skip
"""Beginnings of modules below `BELOW` that do not belong to the minimal core."""

REMAINING = frozenset({
    ("inproc", "core_runtime.executor.uniproc"),  # until executors are plugins
})  # fmt: skip
"""Arrows that are still to go."""

LOOP_LINES = 200


def test_no_arrow_leads_out_of_the_loop() -> None:
    arrows = {(name, target) for name in LOOP for target in imports_of(name) if not is_minimal(target)}
    assert not arrows - REMAINING, sorted(arrows - REMAINING)


def test_the_engine_core_is_one_page_of_reading() -> None:
    lines = (ROOT / "engine" / "core.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LOOP_LINES


def is_minimal(module: str) -> bool:
    package, _, name = module.rpartition(".")
    if package == "core.engine":
        return name in LOOP
    if module in TOP_LEVEL:
        return True
    return module.startswith(BELOW) and not module.startswith(OPTIONAL)


def imports_of(name: str) -> Iterator[str]:
    """Modules of ours that a module of `core.engine` imports, wherever in its text; those for types are counted too."""
    tree = ast.parse((ROOT / "engine" / f"{name}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "core")
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "core":
            for alias in node.names:
                yield module_named(node.module, alias.name)


def module_named(package: str, name: str) -> str:
    """What `from package import name` imports: a module of the package, or the package that has the name."""
    path = ROOT.joinpath(*package.split(".")[1:], name)
    is_module = path.with_suffix(".py").is_file() or path.is_dir()
    return f"{package}.{name}" if is_module else package
