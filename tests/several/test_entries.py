"""Command lines and files with several models: what is read, and what is refused before anything starts."""

import pytest

from core.api.errors import ConfigError
from core_apis.server.stop_signals import StopSignals
from core_commands.several.entries import NOT_HERE, ModelEntry, read_entries
from core_commands.several.launch import budget_problems, serve_several
from core_commands.several.words import is_several
from core_config.arguments.parser import Parser

MB = 1 << 20


def read(*words):
    problems = []
    return read_entries(Parser(collects=True).parse(words), problems), problems


@pytest.mark.parametrize(
    ("words", "several"),
    [
        ([], False),
        (["a", "--port", "1"], False),
        (["a", "b"], True),
        (["--port", "1"], False),
        (["a", "--model-budget", "8GiB"], True),
        (["--models=f"], True),
        (["--model_turn", "3"], True),
        (["--model", "a"], False),
    ],
)
def test_which_command_lines_are_about_several_models(words, several):
    assert is_several(words) == several


def test_models_of_a_command_line_and_of_a_file(tiny_llama, tiny_gemma3, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(f"- model: {tiny_gemma3}\n  served-model-name: [g, gemma]\n  pinned: true\n  max_model_len: 64\n")
    entries, problems = read(
        str(tiny_llama), "--models", str(file), "--kv-cache-memory-bytes", "1MiB", "--model-idle-timeout", "9"
    )
    assert problems == []
    assert [(entry.names, entry.pinned, entry.idle_timeout) for entry in entries] == [
        ((str(tiny_llama),), False, 9.0),
        (("g", "gemma"), True, 9.0),
    ]
    assert entries[1].max_model_len == 64
    assert all(MB // 2 < entry.awake_bytes < 100 * MB for entry in entries)


def test_adapters_in_the_arguments_of_a_model_are_names_of_it(tiny_llama, tiny_gemma3, tmp_path):
    file = tmp_path / "models.yaml"
    for name in ("sql", "fr"):
        (tmp_path / name).mkdir()
    adapters = f"[{{name: sql, path: {tmp_path}/sql}}, 'fr={tmp_path}/fr']"
    file.write_text(
        f"- model: {tiny_llama}\n  served_model_name: l\n  enable_lora: true\n  lora_modules: {adapters}\n"
        f"- model: {tiny_gemma3}\n  served_model_name: g\n"
    )
    entries, problems = read("--models", str(file), "--kv-cache-memory-bytes", "1MiB")
    assert problems == []
    assert [(entry.names, entry.adapters) for entry in entries] == [(("l",), ("sql", "fr")), (("g",), ())]


OF_SEVERAL_PROCESSES = {
    "headless": True,
    "data_parallel_address": "127.0.0.1",
    "data_parallel_multi_port_external_lb": True,
    "data_parallel_rank": 1,
    "nnodes": 2,
    "node_rank": 1,
    "api_server_count": 2,
    "receipt_key": "/key",
}


@pytest.mark.parametrize("name", NOT_HERE)
def test_servers_that_are_several_processes_already_are_refused_by_name(name, tiny_llama, tmp_path):
    file = tmp_path / "models.yaml"
    value = str(OF_SEVERAL_PROCESSES[name]).lower()
    file.write_text(f"- model: {tiny_llama}\n  {name}: {value}\n")
    entries, problems = read("--models", str(file), "--kv-cache-memory-bytes", "1MiB")
    flag = f"--{name.replace('_', '-')}"
    said = f"{flag}: not with several models behind one address; serve that model by a command of its own."
    assert entries == [] and said in problems


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid YAML"),
        ("model: a", "expected a list of mappings"),
        ("[]", "names no model"),
        ("- max_model_len: 5", "model 1: `model` is missing"),
        ("- model: MODEL\n  max_modle_len: 5", "Did you mean 'max_model_len'"),
        ("- model: MODEL\n  port: 5", "`port` is no argument of a model"),
        ("- model: MODEL\n  pinned: maybe", "`pinned` is 'maybe'"),
        ("- model: MODEL\n  idle_timeout: -1", "`idle_timeout` is -1"),
        ("- model: /nowhere", "model /nowhere:"),
        ("- model: MODEL\n- model: MODEL", "is the name of two models"),
        ("- model: MODEL\n  api_server_count: 2", "--api-server-count: not with several models"),
        ("\n".join(["- model: a"] * 65), "65 models; expected at most 64"),
        ("#" * (1 << 20) + "\n- model: MODEL", "expected at most 1048576"),
    ],
)
def test_files_that_are_refused(text, said, tiny_llama, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(text.replace("MODEL", str(tiny_llama)))
    entries, problems = read("--models", str(file), "--kv-cache-memory-bytes", "1MiB")
    assert said in " ".join(problems), problems
    assert entries == [] or "two models" in said


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--request-journal", "/tmp/j"], "--request-journal"),
        (["--kv-connectors-config.tcp.listen", "127.0.0.1:1"], "--kv-connectors-config.tcp.listen"),
        (["--kv-transfer-config", '{"kv_connector": "tcp", "kv_role": "kv_producer"}'], "--kv-transfer-config"),
    ],
)
def test_what_two_models_cannot_share(words, flag, tiny_llama, tiny_gemma3):
    _, problems = read(str(tiny_llama), str(tiny_gemma3), *words)
    assert problems == [f"{flag}: two models cannot share it; give each its own in a file: --models FILE."]


def test_a_budget_that_is_too_small_is_said_before_anything_starts():
    entries = [
        ModelEntry(("a",), {}, 300 * MB, 100 * MB, 64),
        ModelEntry(("b",), {}, 500 * MB, 0, 64),
        ModelEntry(("c",), {}, 200 * MB, 0, 64, pinned=True),
    ]
    assert budget_problems(entries, 800 * MB) == []
    (sentence,) = budget_problems(entries, 799 * MB)
    assert sentence.startswith(
        "--model-budget: model 'b' takes 500 MiB beside 300 MiB of pinned models and cached blocks"
    )


def test_all_problems_are_told_together(tiny_llama):
    words = [str(tiny_llama), "--model-budget", "1KiB", "--nonsense", "3"]
    with pytest.raises(ConfigError) as raised, StopSignals() as signals:
        serve_several(words, signals)
    assert "--nonsense" in raised.value.problems[0]
    with pytest.raises(ConfigError) as raised, StopSignals() as signals:
        serve_several(words[:3], signals)
    assert "the budget is 0 MiB" in raised.value.problems[0]
