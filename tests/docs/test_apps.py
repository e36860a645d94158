"""The pages of docs/recipes/apps are what their table makes; what they say was run is run by `make test-clients`."""

import ast
import re
import shlex
import tomllib

import pytest
import yaml

from tests.clients.test_python_clients import NUM_APPLICATIONS
from tests.docs.apps import PAGES, PROGRAMS, apps, command, index, page, state
from tests.docs.recipes import complaints

NAMED = {
    "anyscale", "anythingllm", "autogen", "bentoml", "cerebrium", "chatbox", "dify", "dstack", "haystack", "huggingface",
    "litellm", "lobe_chat", "modal", "open_webui", "skypilot", "triton",
}  # fmt: skip
"""Applications that the documentation of vLLM names."""
READERS = {
    "python": ast.parse,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "ini": lambda text: all("=" in line for line in text.splitlines() if line and not line.startswith("#")) or 1 / 0,
}


def test_pages_are_those_of_the_table():
    assert (PAGES / "README.md").read_text() == index()
    for name, row in apps().items():
        assert (PAGES / f"{name}.md").read_text() == page(row), "python -m tests.docs.apps writes it"
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *apps()} and apps().keys() == NAMED


@pytest.mark.parametrize("name", sorted(NAMED))
def test_settings_can_be_read_by_what_they_are_for(name):
    row = apps()[name]
    if "code" in row:
        READERS[row["language"]](row["code"])
    assert ("run" in row) == ("program" in row)
    assert row["settings"] or row.get("code")


def test_what_is_said_to_run_is_run():
    programs = {row["program"] for row in apps().values() if "program" in row}
    assert programs - {"with_litellm.py"} == {f"app_{name}.py" for name in NUM_APPLICATIONS}
    for row in apps().values():
        if "program" in row:
            imported = (PROGRAMS / row["program"]).read_text()
            assert all(package.partition("-")[0] in imported for package in row["run"])
            assert re.match(r"\*Run with [a-z_-]+ \d", state(row))


@pytest.mark.parametrize("words", sorted({command(row) for row in apps().values()}))
def test_the_engine_takes_every_command(words):
    assert not complaints({"shape": "llama-8b"}, shlex.split(words)[3:])


def test_commands_inside_of_settings_are_taken():
    """The words behind `core serve` in lists, strings and lines of the settings."""
    for name, row in apps().items():
        text = row.get("code", "").replace('", "', " ")
        for line in re.findall(r"core serve [A-Z/a-z]+([^\n\"\]`]*)", text):
            assert not complaints({"shape": "llama-8b"}, shlex.split(line)), name
