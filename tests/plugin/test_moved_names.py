"""A plugin that imports modules from where they were: it runs with the compat package, and is a sentence without it."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

import core.api
from core.plugin import moved
from core.plugin.manifest import ManifestError, load_manifest
from core.plugin.words import read_words
from core_compat.moved import MOVED, MovedFinder

ROWS = (
    ("core.api.former", "core.api.specs"),
    ("core.api.former_folder", "core.plugin"),
    ("core.api.former_folder.contracts", "core.kv"),
    ("core.api.same", "core.api.same"),
)
BODY = "from core.api.former import AttentionSpec"


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> MovedFinder:
    """Finds the rows above, in this process, until the test ends."""
    found = MovedFinder(ROWS)
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    return found


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No plugin was loaded in this process before, and no old name is known to it afterwards."""
    moved.keep_moved_names.cache_clear()
    yield
    for name in [name for name in sys.modules if name.startswith("core.api.former")]:
        del sys.modules[name]
    for name in [name for name in vars(core.api) if name.startswith("former")]:
        delattr(core.api, name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_name_is_the_module_itself(finder: MovedFinder) -> None:
    assert import_module("core.api.former") is import_module("core.api.specs")
    assert import_module("core.api.former_folder.kinds") is import_module("core.plugin.kinds")
    assert import_module("core.api.former_folder.contracts.block_pool") is import_module("core.kv.block_pool")
    assert import_module("core.api.specs").__name__ == "core.api.specs"
    assert str(import_module("core.api.specs").__spec__).startswith("ModuleSpec(name='core.api.specs'")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'core\.plugin\.nothing'"):
        import_module("core.api.former_folder.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'core\.api\.same'"):
        import_module("core.api.same")


def test_an_old_name_warns_with_the_new_one_and_the_date(finder: MovedFinder) -> None:
    with pytest.warns(DeprecationWarning, match=r"core\.api\.former is core\.api\.specs; .* kept until 2027-06-30"):
        import_module("core.api.former")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loading_a_plugin_of_another_package_keeps_old_names(make_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_plugin("attention", "old", BODY)
    with pytest.raises(ManifestError, match=r"core \S+ has no core\.api\.former, and none that has moved from there"):
        load_manifest(row)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("core_compat.moved.MOVED", ROWS)
    moved.keep_moved_names.cache_clear()
    assert load_manifest(row).spec.name == "old"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_that_plugins_names_may_use_old_names(make_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr("core_compat.moved.MOVED", ROWS)
    file = make_plugin("attention", "old", BODY).target.removeprefix("file:")
    (row,) = read_words(file, []).added
    assert row.name == "old"


def test_without_the_compat_package_the_sentence_names_it(make_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved, "load", lambda *_: None)
    monkeypatch.setattr(moved, "target_of", lambda *_: "")
    with pytest.raises(
        ManifestError, match=r"`pip install \S+` keeps the names of modules that have moved, until 2027-06-30"
    ):
        load_manifest(make_plugin("attention", "old", BODY))


def test_a_row_leads_from_a_name_that_is_free_to_a_module() -> None:
    """Of the rows that there are: the package of an old name is there, and so is the new module."""
    olds = {old for old, _ in MOVED}
    for old, new in MOVED:
        package = old.rpartition(".")[0]
        assert package in olds or import_module(package)
        assert import_module(new)


def test_nothing_is_installed_for_a_plugin_of_the_engine() -> None:
    program = (
        "import sys; from core.plugin.registry import PluginRegistry; before = [*sys.meta_path]\n"
        "PluginRegistry().candidates('policy'); print(sys.meta_path == before, 'core_compat' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True False\n", done.stderr
