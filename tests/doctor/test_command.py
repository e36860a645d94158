"""The command's sentences about what cannot be tried, its choice of the earlier run, and how a change is bypassed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core import LLM
from core.api.errors import CoreError, UserError
from core_commands.cli.plugin.doctor import doctor
from core_commands.doctor.starts import Bypass, ProcessStarter, bypass_of
from core_commands.doctor.trial import with_copies
from core_observers.runs.compare import Change
from core_observers.runs.copies import Copies
from core_observers.runs.run import Package, digest_of_module

LENGTH = 64


@pytest.fixture(scope="module")
def records(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one good start."""
    folder = tmp_path_factory.mktemp("canary")
    LLM(str(tiny_llama), max_model_len=LENGTH, max_num_seqs=1, state_canary=str(folder)).close()
    return folder


def words(model: Path, canary: Path | None, *more: str) -> list[str]:
    place = [] if canary is None else ["--state-canary", str(canary)]
    return [str(model), "--max-model-len", str(LENGTH), "--max-num-seqs", "1", *place, *more]


def changed(records: Path, **fields: object) -> Path:
    """The book of runs, with other values in its newest run. Return its path."""
    [path] = (records / "runs").glob("*.json")
    book = json.loads(path.read_text())
    book["runs"][-1] |= fields
    path.write_text(json.dumps(book))
    return path


def test_what_cannot_be_tried_is_a_sentence(tiny_llama: Path, records: Path, tmp_path: Path) -> None:
    for given, sentence in (
        (words(tiny_llama, None), "--state-canary DIR is missing"),
        (words(tiny_llama, tmp_path), "no start of this model with these arguments is kept"),
        (words(tiny_llama, records, "--since", "9"), r"--since 9: no such run; kept are 1 "),
        (words(tiny_llama, records, "--since", "x"), "--since x"),
        (words(tiny_llama, records, "--since", "0"), "--since 0"),
    ):
        with pytest.raises(UserError, match=sentence):
            doctor(given)


def test_unchanged_plugins_start_nothing(
    tiny_llama: Path, records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessStarter, "start", None)
    assert doctor(words(tiny_llama, records)) == 0
    assert capsys.readouterr().out == "No plugin in use has changed since run 1.\n"
    assert doctor(words(tiny_llama, records, "--since", "1", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []


def test_runs_of_another_version_are_not_compared(tiny_llama: Path, records: Path) -> None:
    path = changed(records)
    before = path.read_bytes()
    try:
        changed(records, version="0.0.9")
        with pytest.raises(UserError, match=r"All kept runs are of other versions than .* \(the newest: 0\.0\.9\)"):
            doctor(words(tiny_llama, records))
        with pytest.raises(UserError, match=r"that run was one of version 0\.0\.9"):
            doctor(words(tiny_llama, records, "--since", "1"))
    finally:
        path.write_bytes(before)


def package(module: str, *plugins: str, version: str = "1", digest: str = "x") -> Package:
    return Package(module.replace("_", "-"), version, module, digest, plugins)


def test_how_each_change_is_bypassed(tmp_path: Path) -> None:
    copies = Copies(tmp_path)

    def ways(before: Package | None, now: Package | None) -> Bypass | None:
        return bypass_of(Change(before, now), copies)

    new = package("core_mine", "executor.mine", "kernels.mine")
    rows = (("executor", "mine", "core-mine"), ("kernels", "mine", "core-mine"))
    assert ways(None, new) == Bypass(without=rows, exact=True), "where there was none, none is the earlier state"
    kernels = [package("core_mine", "kernels.mine", digest=digest) for digest in "xy"]
    assert ways(*kernels) == Bypass(without=(("kernels", "mine", "core-mine"),), exact=False)
    executors = [package("core_mine", "executor.mine", digest=digest) for digest in "xy"]
    assert ways(*executors) is None, "nothing else does its work, and there is no copy"
    assert ways(new, None) is None, "a plugin that is gone, without a copy"
    platforms = [Package("core-engine-platforms", "1", "core_platforms", digest, ("platform.cpu",)) for digest in "xy"]
    assert ways(*platforms) is None


def test_a_plugin_in_a_file_is_bypassed_by_its_copy(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("KIND = 'policy'\n")
    module = f"file:{source}"
    before = Package("", "", module, digest_of_module(module), ("policy.mine",))
    copies = Copies(tmp_path / "packages")
    copies.keep([before])
    source.write_text("KIND = 'policy'  # other code\n")
    now = Package("", "", module, digest_of_module(module), ("policy.mine",))
    bypass = bypass_of(Change(before, now), copies)
    assert bypass is not None and bypass.exact and bypass.file is not None
    assert Path(bypass.file[1]).read_text() == "KIND = 'policy'\n"
    assert with_copies(f"no:x, {source}", dict([bypass.file])) == f"no:x,{bypass.file[1]}"


def test_the_process_that_starts_engines_may_be_gone() -> None:
    starter = ProcessStarter({})
    starter.close()
    with pytest.raises(CoreError, match="The process that starts engines is gone"):
        starter.start([])
