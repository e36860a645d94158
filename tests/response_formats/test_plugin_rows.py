from pathlib import Path

import pytest

from core.api.errors import PluginError, UserError
from core.plugin.registry import PluginRegistry
from core_formats.document import document
from core_formats.plugin_rows import installed_rows, row_named, rows_of_file
from core_kit.skeleton import TEMPLATES

ROWS = """
[[row]]
name = "mine"
tool_names = ["mine"]
[[row.calls]]
open = "@call "
"""
MANIFEST = """
from core.plugin.hookspecs import PluginSpec, hookimpl
CONTRACT = 1
KIND = "response_format"

class Formats:
    def rows(self):
        return {rows!r}

@hookimpl
def core_spec():
    return PluginSpec(name="mine")

@hookimpl
def core_load(context):
    return Formats()
"""


@pytest.fixture
def registry(tmp_path):
    def make(rows):
        path = tmp_path / "mine.py"
        path.write_text(MANIFEST.format(rows=rows))
        return PluginRegistry(words=str(path))

    return make


def test_files_bring_rows(tmp_path):
    toml = tmp_path / "rows.toml"
    toml.write_text(ROWS)
    python = tmp_path / "rows.py"
    python.write_text(f"ROWS = {ROWS!r}")
    assert rows_of_file(toml) == rows_of_file(python)
    assert row_named("mine", "tools", PluginRegistry([]), tuple(rows_of_file(toml))).calls[0].open == "@call "


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "[[row]]\nnam = 1", "no TOML with response formats"),
        ("a.toml", "row", "no TOML with response formats"),
        ("a.py", "class Parser: pass", "no text ROWS"),
        ("a.py", "1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_files_that_bring_none_are_refused(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        rows_of_file(path)
    with pytest.raises(UserError, match="no such file"):
        rows_of_file(tmp_path / "b.toml")


def test_plugins_bring_rows(registry):
    found = registry(ROWS)
    assert row_named("mine", "tools", found).name == "mine"
    assert [row.name for row in installed_rows(found)] == ["mine"]
    assert row_named("hermes", "tools", found).name == "hermes"
    with pytest.raises(UserError, match="no response format of that name"):
        row_named("yours", "tools", found)


def test_a_plugin_without_rows_is_blamed(registry):
    found = registry("row = 1")
    with pytest.raises(PluginError, match=r"response_format 'mine': rows\(\) is no TOML with response formats"):
        row_named("mine", "tools", found)
    assert installed_rows(found) == []


def test_the_template_of_new_plugins_has_a_row(tmp_path):
    source = (TEMPLATES / "response_format/core_my_plugin/formats.py").read_text()
    path = tmp_path / "rows.py"
    path.write_text(source)
    assert [row.name for row in rows_of_file(path)] == ["my_plugin"]


def test_the_page_of_formats_is_the_one_of_the_rows():
    page = Path(__file__).parents[2] / "docs" / "response-formats.md"
    assert page.read_text(encoding="utf-8") == document()
