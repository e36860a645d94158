"""Names of the package `core` that other distributions offer: found by entry points, missed with a sentence."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import core
from core import entry_points
from core.entry_points import load, target_of


@pytest.fixture
def unbound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`core` as it is before anybody has asked it for LLM."""
    monkeypatch.delitem(vars(core), "LLM", raising=False)
    yield


def package(folder: Path, name: str, entries: str) -> None:
    """An installed distribution with these entry points, and no code."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


def test_a_name_whose_distribution_is_missing_says_what_to_install(
    unbound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_points, "target_of", lambda group, name, usual: "")
    with pytest.raises(ImportError, match=r"core\.LLM comes with (\S+): pip install \1\."):
        exec("from core import LLM", {})


def test_a_name_is_found_in_whichever_distribution_offers_it(
    tmp_path: Path, unbound: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "core-other-front", "[core.names]\nLLM = json:JSONDecoder\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert target_of("core.names", "LLM", "core-other-front") == "json:JSONDecoder"
    assert target_of("core.names", "LLM", "not-installed") == "json:JSONDecoder"
    assert target_of("core.names", "AsyncLLM", "core-other-front") == "core_frontend.library.async_llm:AsyncLLM"
    assert load("core.names", "NoSuchName", "core-other-front") is None


def test_a_name_of_the_core_reads_no_metadata() -> None:
    program = (
        "import sys, core\n"
        "core.SamplingParams, core.StructuredOutputsParams, core.__version__\n"
        "print(sorted({'importlib_metadata', 'core.plugin', 'core_frontend.llm', 'torch'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_the_stub_names_what_the_package_offers() -> None:
    stub = Path(str(core.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    named = {line.rpartition(" as ")[2] for line in stub.splitlines() if " as " in line}
    assert named == {*core.__all__}
