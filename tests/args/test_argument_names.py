"""Every argument of the reference list is known, with its status; the number that is not served yet is printed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from core.args.parser import Parser
from core.args.schema import group_key, schema
from core.args.sources import merge

LISTED = json.loads((Path(__file__).parent / "argument_names.json").read_text())
COMMANDS_OWN = {"help"}  # taken by every command before the arguments are read
KEPT = {"device"}  # listed as removed; here it names the platform plugin
ELSEWHERE = {  # the settings of a subsystem stand in its own group
    "VllmConfig": {"instance", "attention", "compilation", "kernel", "speculative", "structured_outputs"},
    "Frontend": {"frontend", "model"},
    "EngineArgs": {"engine", "plugins"},
    "LoRAConfig": {"lora"},
    "MultiModalConfig": {"multimodal"},
}


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["name"])
def test_every_listed_argument_is_known(row):
    name, known = row["name"], schema()
    field, old = known.named(name), known.gone(name)
    if name in COMMANDS_OWN:
        assert field is None and old is None
        return
    status = "current" if field is not None else old.status
    assert status == ("current" if name in KEPT else row["status"])
    group = (field or old).group
    assert group in ELSEWHERE.get(row["group"], {group_key(row["group"])})


def test_counts(capsys):
    fields = list(schema().fields.values())
    served = [field.name for field in fields if field.is_served]
    old = Counter(entry.status for entry in schema().retired.values())
    with capsys.disabled():
        print(
            f"\narguments: {len(fields)} declared, {len(served)} served, {len(fields) - len(served)} not served yet, "
            f"{old['deprecated']} deprecated, {old['removed']} removed"
        )
    assert len(served) >= 74
    assert old == Counter({"removed": 52, "deprecated": 3})


@pytest.mark.parametrize("old", list(schema().retired.values()), ids=lambda old: old.name)
def test_retired_arguments_are_told_in_every_source(old, tmp_path):
    words = [old.flag] if old.switch else [old.flag, "1"]
    parsed = Parser().parse([*words, "model.gguf"])
    assert parsed.values["model"].value == "model.gguf"
    path = tmp_path / "engine.yaml"
    path.write_text(f"{old.name}: 1\n" if not old.switch else f"{old.name}: true\n")
    merged = merge({"config": str(path)}, {})
    for found in (parsed, merged):
        told, silent = (found.problems, found.warnings) if old.status == "removed" else (found.warnings, found.problems)
        assert len(told) == 1 and silent == []
        assert old.status in told[0] and (old.instead in told[0]) and ("use " in told[0] or "leave it out" in told[0])


def test_deprecated_arguments_translate():
    parse = Parser().parse
    for words, value in (
        (["--disable-log-requests"], False),
        (["--no-disable-log-requests"], True),
        (["--disable-log-requests=false"], True),
    ):
        assert parse(words).values["enable_log_requests"].value is value
    assert parse(["--dcp-kv-cache-interleave-size", "1"]).values["cp_kv_cache_interleave_size"].value == 1
    merged = merge({"disable_log_requests": True}, {})
    assert merged.value("enable_log_requests") is False and merged.is_set("enable_log_requests")
    assert len(merged.warnings) == 1 and merged.problems == []
    assert "true or false" in merge({"disable_log_requests": "perhaps"}, {}).problems[0]


def test_replacements_that_are_arguments_exist():
    known = schema()
    for old in known.retired.values():
        flag = old.instead.split()[0].rstrip(",") if old.instead.startswith("--") else ""
        head, _, key = flag.removeprefix("--").removeprefix("no-").partition(".")
        if flag:
            field = known.named(head)
            assert field is not None, old.name
            assert not field.keys or not key or key in field.keys, old.name


def test_a_short_spelling_that_is_gone_is_told():
    (problem,) = Parser().parse(["-spec-draft-tp", "2"]).problems
    assert "--speculative-config.draft_tensor_parallel_size" in problem
