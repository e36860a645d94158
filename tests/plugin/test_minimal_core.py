"""The minimal core imports no contract of tensors and no shape of a model, not even for types."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHAPES = ("decoder_spec", "block_parts", "block_spec", "mixer_parts", "module_spec", "local_spec")
SHAPES += ("draft_spec", "draft_input", "model_part", "pooling_head")
FORBIDDEN = ("core_runtime.contracts", "core_runtime.weights", *(f"core.api.{name}" for name in SHAPES))
FOLDERS = ("api", "args", "plugin", "scheduler", "kv", "engine")


def modules():
    """The files of the packages, without those that the forbidden names stand for."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "core" / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if not is_forbidden(name):
                yield name, path


def is_forbidden(name):
    return any(name == part or name.startswith(f"{part}.") for part in FORBIDDEN)


@functools.cache
def imported(path):
    """Every name that a file imports, under a condition or inside a function too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_contract_of_tensors_and_no_shape_is_imported(folder):
    wrong = {}
    for name, path in modules():
        if name.startswith(f"core.{folder}"):
            found = sorted(filter(is_forbidden, imported(path)))
            if found:
                wrong[name] = found
    assert wrong == {}


def test_the_framework_names_no_method_of_quantization_and_no_runtime():
    for name, path in modules():
        names = imported(path)
        if name.startswith("core.plugin"):
            assert not any(part.startswith("core_config") for part in names), name
        if name in ("core.engine.process", "core.engine.inproc", "core.engine.executors"):
            assert not any(part.startswith("core_runtime.executor") for part in names), name
            assert '"core_runtime.executor' not in path.read_text("utf-8"), name
