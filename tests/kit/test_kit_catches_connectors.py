"""Connectors that break a promise are found by the check that is meant to find them: on faults, tenants, threads and loads."""

from pathlib import Path

import pytest

from core_kit import skeleton
from core_kit.case import Subject
from core_kit.checks import kv_connector, kv_connector_faults, kv_world
from tests.kit.cheats import failing, plugin

SHELF = Path("tests/external/core_shelf/core_shelf/shelf.py").read_text()
MEMORY = (Path(skeleton.__file__).parent / "templates/kv_connector/core_my_plugin/connector.py").read_text()
ARGUMENTS = """
import msgspec
class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
"""
ON_DISK = {
    "believes any file": (
        [("if zlib.crc32(data[4:]).to_bytes(4, 'big') != data[:4]:".replace("'", '"'), "if not data:")],
        "missing, short, damaged",
    ),
    "looks for files while planning": (
        [("return self._name(group, key) in self._names", "return (self._folder / self._name(group, key)).exists()")],
        "while a step is planned",
    ),
    "writes on the thread of the engine": (
        [("self._thread.submit(self._write, self._folder / name, page)", "self._write(self._folder / name, page)")],
        "On a full disk",
    ),
    "never ends a load": ([("load.finish()", "pass")], "never saved ends"),
}
IN_MEMORY = {
    "compares tokens alone": ([("(self._weights, group, key)", "(self._weights, group, key.payload)"),
                               ("[self._weights, group, key]", "[self._weights, group, key.payload]")], "another tenant"),
    "promises what it lacks": ([("return (self._weights, group, key) in self._pages", "return True")], "contains"),
}  # fmt: skip


@pytest.mark.parametrize("changes, words", ON_DISK.values(), ids=ON_DISK)
def test_connectors_with_files(tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr(kv_connector_faults, "PATIENCE_S", 0.3)
    monkeypatch.setattr(kv_world, "PATIENCE_S", 0.3)
    pages = tmp_path / "pages"
    pages.mkdir()
    source = ARGUMENTS + plugin(tmp_path, "kv_connector", "", spec=", arguments=Arguments")
    text = SHELF
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "implementation.py").write_text(text)
    source += f"\ndef build(module): return module.Shelf({str(pages)!r}, lambda: '0a' * 16)\n"
    failing(tmp_path, "kv_connector", source, words, arguments={"directory": str(pages)})


@pytest.mark.parametrize("changes, words", IN_MEMORY.values(), ids=IN_MEMORY)
def test_connectors_in_memory(tmp_path, changes, words):
    source = plugin(tmp_path, "kv_connector", MEMORY, changes)
    source += "\ndef build(module): return module.Connector(1 << 20, lambda: '0a' * 16)\n"
    failing(tmp_path, "kv_connector", source, words)


def test_the_skeleton_keeps_every_promise(tmp_path):
    source = plugin(tmp_path, "kv_connector", MEMORY)
    source += "\ndef build(module): return module.Connector(1 << 20, lambda: '0a' * 16)\n"
    path = tmp_path / "sound.py"
    path.write_text(source)
    subject = Subject("kv_connector", "cheat", plugins=str(path))
    for check in kv_connector.CHECKS:
        check(subject)
