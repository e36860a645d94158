"""Manifests of one line: they are whole manifests, and import what they build when it is built."""

from pathlib import Path

import pytest

from core.api.config import ResolvedPlugin
from core.api.errors import PluginError
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import load_manifest
from core.plugin.table import PluginTable
from tests.torch_free import run_torch_free

HEADER = """
import msgspec
from core.plugin.manifest_of import manifest_of
CONTRACT = 1
class Arguments(msgspec.Struct, frozen=True):
    room: int = 3
"""


def row_of(path: Path, line: str) -> ResolvedPlugin:
    file = path / "short.py"
    file.write_text(f"{HEADER}{line}\n")
    return ResolvedPlugin(kind="logits_processor", name="short", target=f"file:{file}", distribution="", version="1")


def test_both_hooks_come_from_one_line(tmp_path: Path) -> None:
    line = "core_spec, core_load = manifest_of('short', 'a line', 'builtins:complex', arguments=Arguments)"
    manifest = load_manifest(row_of(tmp_path, line))
    assert (manifest.spec.name, manifest.spec.summary) == ("short", "a line")
    assert manifest.implements("core_load") and not manifest.implements("core_claim")
    assert manifest.spec.arguments is not None and manifest.spec.arguments().room == 3


def test_the_object_is_built_from_the_arguments_or_from_nothing(tmp_path: Path) -> None:
    line = "core_spec, core_load = manifest_of('short', '', 'msgspec.structs:asdict', arguments=Arguments)"
    manifest = load_manifest(row_of(tmp_path, line))
    given = manifest.spec.arguments(room=5)
    assert manifest.call("core_load", context=LoadContext(arguments=given)) == {"room": 5}
    assert manifest.call("core_load", context=LoadContext()) == {"room": 3}
    (tmp_path / "plain").mkdir()
    plain = row_of(tmp_path / "plain", "core_spec, core_load = manifest_of('short', '', 'builtins:bytearray')")
    assert load_manifest(plain).call("core_load", context=LoadContext()) == bytearray()


@pytest.mark.parametrize("target", ["no_such_module_here:Thing", "builtins:Thing"])
def test_a_target_that_is_not_there_is_the_plugins_mistake(tmp_path: Path, target: str) -> None:
    row = row_of(tmp_path, f"core_spec, core_load = manifest_of('short', '', '{target}')")
    with pytest.raises(PluginError, match=r"'short'.*core_load failed.*(no_such_module_here|Thing)"):
        PluginTable([row]).load("logits_processor", "short", LoadContext())


def test_no_declared_method_is_imported_before_a_checkpoint_declares_it() -> None:
    """Every start asks every manifest of a quantization method about a plain checkpoint."""
    script = """
from core_runtime.specs.checkpoint import CheckpointFacts
from core.plugin.registry import PluginRegistry
registry = PluginRegistry()
methods = "awq", "gptq", "auto_round", "hqq", "compressed_tensors", "quark"
for name in methods:
    manifest = registry.get("quantization", name)
    (reason,) = manifest.call("core_supports", query=CheckpointFacts("", "safetensors", "llama"))
    assert reason.required == f"one that declares {manifest.spec.name}", reason
mine = [name for name in sys.modules if name.startswith("core_quantization.")]
assert not [name for name in mine if name.endswith((".declaration", ".method", ".layout", ".layouts"))], mine
"""
    run_torch_free(script)
