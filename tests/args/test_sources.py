"""Precedence and origins: explicit > YAML > environment > default."""

import copy
import re
from pathlib import Path

import pytest
import torch

from core.args.arg import Given
from core.args.schema import schema
from core_config.arguments import environment
from core_config.arguments.sources import merge


def write(tmp_path, text):
    path = tmp_path / "engine.yaml"
    path.write_text(text)
    return str(path)


def test_defaults_are_complete_and_fresh():
    first, second = merge({}, {}), merge({}, {})
    assert set(first.values) == set(schema().fields)
    assert first.set_by_user() == ()
    first.value("allowed_origins").append("x")
    assert second.value("allowed_origins") == ["*"]


def test_command_line_beats_file_beats_environment_beats_default(tmp_path):
    path = write(tmp_path, "port: 9\nmax-model-len: 1k\nplugins: from-file\nspeculative_config: {method: ngram}\n")
    merged = merge({"port": Given(7, "command line"), "config": path}, {"CORE_PLUGINS": "from-environment"})
    assert merged.values["port"] == Given(7, "command line")
    assert merged.values["max_model_len"] == Given(1000, f"config file {path}")
    assert merged.values["plugins"] == Given("from-file", f"config file {path}")
    assert merged.values["host"] == Given("127.0.0.1", "default")
    assert merged.value("speculative_config") == {"method": "ngram"}
    assert merged.problems == []
    assert merge({}, {"CORE_PLUGINS": "a"}).values["plugins"] == Given("a", "environment CORE_PLUGINS")


def test_keyword_arguments_are_checked_like_the_command_line():
    problems = merge({"modle": "x", "port": "a", "dtype": "half", "seed": True, "enforce_eager": "maybe"}, {}).problems
    assert len(problems) == 4
    assert "modle" in problems[0] and "'model'" in problems[0]
    assert any("port 'a'" in problem for problem in problems)


def test_types_of_torch_are_types():
    assert merge({"dtype": torch.bfloat16}, {}).value("dtype") == "bfloat16"


def test_what_old_scripts_leave_as_it_was_asks_for_nothing():
    asked = {"task": "generate", "tokenizer_pool_size": 0, "worker_use_ray": False, "num_scheduler_steps": 1}
    assert merge(asked, {}).problems == []
    (problem,) = merge({"task": "embed"}, {}).problems
    assert "--runner pooling" in problem


def test_a_name_may_be_one_text_or_a_list():
    assert merge({"served_model_name": "a"}, {}).value("served_model_name") == ["a"]
    assert merge({"served_model_name": ("a", "b")}, {}).value("served_model_name") == ["a", "b"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("prot: 1", ["prot", "'port'"]),
        ("port: [1", ["not valid YAML"]),
        ("- a", ["expected a mapping"]),
        ("config: other.yaml", ["cannot name another file"]),
        ("port: many", ["port", "an integer"]),
        ("prefill_context_parallel_size: 4", ["does not serve"]),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, words):
    path = write(tmp_path, text)
    (problem,) = merge({"config": path}, {}).problems
    for word in [*words, path]:
        assert word in problem


def test_a_missing_file_is_a_problem_and_an_empty_one_is_not(tmp_path):
    assert "cannot be read" in merge({"config": str(tmp_path / "none.yaml")}, {}).problems[0]
    assert merge({"config": write(tmp_path, "")}, {}).problems == []


def test_every_default_can_be_given():
    for field in schema().fields.values():
        if field.name != "config":
            assert merge({field.name: field.default}, {}).problems == [], field.name


def test_inputs_are_not_changed_and_merging_twice_gives_the_same():
    explicit = {"hf_overrides": {"a": {"b": 1}}, "kv_events_config": {"hwm": 3}, "served_model_name": ["a"]}
    before = copy.deepcopy(explicit)
    first, second = merge(explicit, {}), merge(explicit, {})
    first.value("served_model_name").append("x")
    assert explicit == before
    assert second.value("kv_events_config") == {"hwm": 3} and second.value("served_model_name") == ["a"]


def test_none_leaves_an_argument_open_even_over_a_file(tmp_path):
    path = write(tmp_path, "max_num_seqs: 8\nseed: 3\n")
    merged = merge({"max_num_seqs": None, "seed": None, "config": path}, {})
    assert merged.value("max_num_seqs") is None and not merged.is_set("max_num_seqs")
    assert merged.value("seed") is None and merged.is_set("seed")
    assert merge({"dp_sync_interval": 16, "max_log_len": 0}, {}).values["max_log_len"] == Given(0, "argument")


def test_one_key_may_come_from_the_environment():
    assert merge({}, {"CORE_API_KEY": "a,b"}).value("api_key") == ["a,b"]
    assert merge({"api_key": "given"}, {"CORE_API_KEY": "k"}).value("api_key") == ["given"]
    assert merge({}, {"CORE_API_KEY": ""}).value("api_key") is None


def test_secrets_are_in_no_sentence(tmp_path):
    path = write(tmp_path, "api_key: {hidden-word: 1}\napi-key: hidden-word\nhf_token: [hidden-word]")
    for merged in (
        merge({"api_key": {"hidden-word": 1}}, {}),
        merge({"hf_token": ["hidden-word"]}, {}),
        merge({"config": path}, {}),
        merge({}, {"CORE_API_KEY": "[hidden-word"}),
    ):
        assert merged.problems and "hidden-word" not in str(merged.problems + merged.warnings)


def test_a_variable_that_is_nearly_one_of_ours_is_told():
    given = {"CORE_PLUGIN": "a", "CORE_DUMPS": "/var", "PATH": "/bin", "CORE_NATIVE": "host", "CORE_LOG_LEVEL": "debug"}
    merged = merge({}, given)
    assert merged.problems == []
    assert merged.warnings == [
        "environment: CORE_PLUGIN is not read. Did you mean 'CORE_PLUGINS'?",
        "environment: CORE_DUMPS is not read; there is no such setting.",
    ]
    assert merged.value("log_level") == "debug"


def test_variables_of_others_are_told_by_name_and_never_by_value():
    given = {"VLLM_CPU_KVCACHE_SPACE": "hidden-word", "VLLM_PLUGINS": "hidden-word", "VLLM_NOTHING": "hidden-word"}
    services = {"VLLM_SERVICE_HOST": "10.0.0.1", "CORE_PORT": "tcp://10.0.0.1:80", "CORE_PORT_80_TCP_ADDR": "10.0.0.1"}
    merged = merge({}, given | services)
    assert merged.problems == [] and "hidden-word" not in str(merged.warnings)
    assert merged.warnings == [
        "environment: VLLM_CPU_KVCACHE_SPACE is not read: use --kv-cache-memory-bytes.",
        "environment: VLLM_PLUGINS is not read: use --plugins or CORE_PLUGINS.",
        "environment: VLLM_NOTHING is not read; there is no such setting.",
    ]
    refused = merge({"fail_on_environ_validation": True}, given | {"VLLM_API_KEY": "hidden-word"})
    assert refused.problems[:3] == merged.warnings and "VLLM_API_KEY" in refused.problems[3]
    assert refused.warnings == []


def test_the_table_of_variables_is_sound():
    text = environment.FILE.read_text()
    names = [line.split("|")[0].strip() for line in text.splitlines() if line.startswith("VLLM_")]
    assert len(names) == len(set(names)) == len(environment.table()) > 280
    for row in environment.table().values():
        assert row.text and row.topic and not row.text.endswith("."), row
        for flag in re.findall(r"--[a-z][a-z-]+", row.text):
            assert flag in ("--help",) or schema().named(flag.removeprefix("--").replace("-", "_")), (row.name, flag)
    page = Path(__file__).parents[2] / "docs" / "environment.md"
    assert page.read_text() == environment.document(), environment.INTRO.splitlines()[2]
