"""The guides from other engines are what their tables make, and all that they name exists here."""

import re
import shlex

import pytest

from core.args.schema import schema
from core_apis.protocol.document import BODIES
from tests.docs.guides import DOCS, FLAG, KINDS, PAGES, llama_rows, tables
from tests.docs.recipes import complaints

FIELD = re.compile(r"`([a-z_]+)`")
OURS = {"--version"}
"""Flags of `core` that are no arguments of an engine."""


def flags_of(text):
    """The flags that a text names, without those of other commands."""
    return [flag for flag in FLAG.findall(text) if flag not in OURS]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_tables_make(name):
    assert (DOCS / name).read_text() == PAGES[name](), "python -m tests.docs.guides writes it"


def test_every_argument_that_a_guide_recommends_exists():
    texts = [row.text for row in llama_rows() if row.kind != "no" or "`--" in row.text]
    texts += [row["here"] for table in tables().values() for row in table["moves"]]
    texts += [sentence for table in tables().values() for sentence in table["differs"]]
    seen = 0
    for text in texts:
        for flag in flags_of(text.replace("see `--context-shift`", "").replace("--help=all", "")):
            head, _, key = flag.removeprefix("--").partition(".")
            field = schema().named(head.partition("=")[0])
            assert field is not None, f"{flag} of {text!r}"
            first = key.partition(".")[0].replace("-", "_")
            assert not first or (field.is_mapping and (not field.keys or first in field.keys)), text
            seen += 1
    assert seen > 100


def test_every_field_that_a_guide_recommends_is_used():
    used = {name for body in BODIES for name in body.used}
    for row in llama_rows():
        if row.kind == "field":
            names = [name for name in FIELD.findall(row.text) if name != "grammar"]
            assert names and set(names) <= used, row


def test_the_table_of_llama_server_is_sound():
    names = [name for row in llama_rows() for name in row.names]
    assert len(names) == len(set(names)), "a name has two rows"
    assert all(re.fullmatch(r"--?[a-zA-Z][\w.-]*", name) for name in names)
    assert len(names) > 350
    for row in llama_rows():
        assert row.kind in KINDS and row.topic and not row.text.endswith("."), row


@pytest.mark.parametrize("command", [command for table in tables().values() for command in table["run"]])
def test_a_command_is_taken_without_a_complaint(command):
    assert not complaints({"shape": "llama-8b"}, shlex.split(command)[3:])
