"""Connectors that break a promise are found by the check that is meant to find them: on faults, tenants, threads and loads."""

from pathlib import Path

import pytest

from core_kit import cases, skeleton
from core_kit.case import Subject
from core_kit.checks import kv_connector, kv_connector_faults, kv_halves, kv_world
from tests.kit.cheats import failing, plugin
from tests.kv.twin import write_twin

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
        if check not in kv_halves.CHECKS:
            check(subject)


HALVES = {
    "loads what it did not find": (
        [("is_here = self._read(name)", "is_here = self._read(name) or True")],
        ("another name in any part", "missing, short, damaged"),
    ),
    "compares tokens alone": (
        [("file_name(name)", "name.payload.hex()"), ("seal(name, page)", "page[:DIGEST_BYTES].tobytes()")],
        ("another name in any part",),
    ),
    "reports nothing": ([("moved = Moved(self._done, self._failed)", "moved = Moved((), ())")], ("is loaded into any slot",)),
    "never drops": ([("(self._folder / file_name(name)).unlink(missing_ok=True)", "pass")], ("was dropped",)),
    "keeps the arena": ([('self._arena: Arena = ()', 'self._arena: Arena = (); self._old = []'),
                         ("self._arena = arena", "self._arena = arena; self._old.append(arena)")], ("refers to the arena",)),
    "writes a neighbour": ([("row.copy_(part)", "row.copy_(part); self._arena[0][slot - 1] = 255")],
                           ("is loaded into any slot",)),
}  # fmt: skip


@pytest.mark.parametrize("how", HALVES)
def test_halves_that_move_bytes(tmp_path, monkeypatch, how):
    changes, found_by = HALVES[how]
    monkeypatch.setattr(kv_world, "PATIENCE_S", 1.0)
    monkeypatch.setattr(kv_halves, "PATIENCE_S", 1.0)
    name = how.replace(" ", "_")  # of its own, as modules stay imported
    plugin = write_twin(tmp_path, monkeypatch, name)
    source = plugin.parent / f"core_{name}" / "worker_half.py"
    text = source.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    source.write_text(text)
    pages = tmp_path / "pages"
    pages.mkdir()
    checks = cases("kv_connector", name, plugins=str(plugin), arguments={"directory": str(pages)})
    for words in found_by:
        (case,) = [case for case in checks if words in str(case)]
        finding = case.finding()
        assert finding.verdict == "failed" and finding.sentence, finding


def test_a_manifest_that_does_not_refuse_ranks(tmp_path, monkeypatch):
    plugin = write_twin(tmp_path, monkeypatch, "of_many_ranks")
    manifest = plugin.parent / "core_of_many_ranks" / "manifest.py"
    text = manifest.read_text()
    assert '"pipeline_parallel_size": [1]' in text
    manifest.write_text(text.replace(', "pipeline_parallel_size": [1]', ""))
    checks = cases("kv_connector", "of_many_ranks", plugins=str(plugin))
    (case,) = [case for case in checks if "there is one rank" in str(case)]
    finding = case.finding()
    assert finding.verdict == "failed" and '"pipeline_parallel_size": [1]' in finding.sentence


def test_the_skeleton_of_two_halves_keeps_every_promise(tmp_path, monkeypatch):
    pages = tmp_path / "pages"
    pages.mkdir()
    plugin = write_twin(tmp_path, monkeypatch, "sound")
    for arguments in ({}, {"directory": str(pages)}):
        subject = Subject("kv_connector", "sound", plugins=str(plugin), arguments=arguments)
        for check in kv_connector.CHECKS:
            check(subject)
