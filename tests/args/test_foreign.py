"""Names that are not served: every one of the reference list is in the table, and is told wherever it is given."""

import json
from pathlib import Path

import pytest

from core import __version__
from core.api.errors import UserError
from core.args.arg import Given
from core.args.schema import schema
from core.plugin.registry import PluginRegistry
from core_config.arguments import foreign
from core_config.arguments.parser import ORIGIN, Parser
from core_config.arguments.sources import merge

LISTED = json.loads((Path(__file__).parent / "argument_names.json").read_text())
COMMANDS_OWN = {"help"}  # taken by every command before the arguments are read
ROWS = list(foreign.table().values())
NAMES = foreign.names()


def problems_of(*words):
    """Of a command line."""
    parsed = Parser().parse(words)
    return parsed.problems + merge(parsed.values, {}).problems


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["name"])
def test_every_listed_argument_is_served_or_in_the_table(row):
    name = row["name"]
    field, stranger = schema().named(name), foreign.named(name)
    if name in COMMANDS_OWN:
        assert field is None and stranger is None
        return
    assert (field is None) != (stranger is None)
    if row["status"] == "current" and stranger is not None:
        assert stranger.kind in ("not yet", "elsewhere")


def test_the_table_is_sound():
    flags = [flag for field in schema().fields.values() for flag in field.flags]
    for row in NAMES:
        assert "-" + row.name not in flags and row.flag not in flags, row.name
        assert not {"-" + short for short in row.shorts} & set(flags)
    shorts = [short for row in NAMES for short in row.shorts]
    assert len(shorts) == len(set(shorts))
    lines = [line for line in foreign.FILE.read_text().splitlines() if "|" in line]
    assert len(lines) == len(ROWS), "a name has two rows"
    for row in ROWS:
        assert row.kind in ("not yet", "elsewhere", "removed", "older"), row
        assert row.takes in ("switch", "value", "list", "keys"), row
        assert row.text and row.topic and not row.text.endswith("."), row


def test_what_is_to_be_written_instead_is_served():
    for row in ROWS:
        if not row.text.startswith("--"):
            assert row.kind in ("not yet", "removed", "older"), row
            continue
        for word in row.text.split():
            if word.startswith("--"):
                head, _, key = word.rstrip(",:").removeprefix("--").removeprefix("no-").partition(".")
                field = schema().named(head)
                assert field is not None, row
                assert not key or (field.is_mapping and (not field.keys or key in field.keys)), row


REFUSED = [row for row in NAMES if not {"true", "false"} <= set(row.neutral)]  # other switches hold with both values


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_name_is_told_in_every_source_and_takes_no_other_word(row, tmp_path):
    """The value differs from every neutral one, and the model behind it is still read."""
    value = {"switch": True, "value": "asked-for", "list": "asked-for", "keys": {"asked": "for"}}[row.takes]
    if "true" in row.neutral:
        value = False
    given = {"switch": [] if value is True else ["=false"], "keys": [".asked", "for"]}.get(row.takes, ["asked-for"])
    flag = "--" + row.name.replace("_", "-")
    words = [flag + "".join(given)] if row.takes == "switch" else [flag + given[0], *given[1:]]
    if row.takes in ("value", "list"):
        words = [flag, "asked-for"]
    parsed = Parser().parse([*words, "--port", "1", "model.gguf"])
    assert parsed.values["model"].value == "model.gguf" and parsed.values["port"].value == 1
    path = tmp_path / "engine.yaml"
    path.write_text(json.dumps({row.name: value}))
    for source in (parsed.values, {"config": str(path)}, {row.name: value}):
        merged = merge(source, {})
        told, silent = merged.problems, merged.warnings
        if row.kind == "older":
            told, silent = silent, told
        assert len(told) == 1 and silent == [], (told, silent)
        assert row.name in told[0].replace("-", "_") and row.text in told[0]
        assert any(words in told[0] for words in ("leave it out", "; use "))


@pytest.mark.parametrize("row", [row for row in NAMES if row.neutral], ids=lambda row: row.name)
def test_values_that_ask_for_nothing_are_accepted(row):
    for word in row.neutral:
        if row.takes != "keys":
            value = "" if word == '""' else word
            flag = "--" + row.name.replace("_", "-")
            if word != "none":
                assert problems_of(f"{flag}={value}") == [], word
            assert merge({row.name: value}, {}).problems == [], word
    values = foreign.WithNeutral({})
    if row.neutral[0] not in ("{}", "[]"):
        assert merge({row.name: values[row.name]}, {}).problems == []
    assert merge({row.name: None}, {}).problems == []


@pytest.mark.parametrize(
    "words, there",
    [
        (
            ["--prefill-context-parallel-size", "2"],
            ["--prefill-context-parallel-size 2: this engine does not serve", "not divided over ranks of their own"],
        ),
        (["-pcp2"], ["--prefill-context-parallel-size 2", "leave it out"]),
        (["-pcp=2"], ["--prefill-context-parallel-size 2"]),
        (
            ["--all2all-backend", "deepep_low_latency"],
            ["--all2all-backend deepep_low_latency", "needs GPUs", "expected"],
        ),
        (["--enable-dbo"], ["--enable-dbo: this engine", "nothing to hide"]),
        (["--eplb-config.communicator", "nccl"], ["'communicator'", "from the checkpoint"]),
        (["--enable-bf16x3-router-gemm"], ["precision of the run", "leave it out"]),
        (["--mamba-config.backend", "flashinfer"], ["--mamba-config.backend flashinfer", "use --kernels"]),
        (["--enable-mm-processor-stats"], ["one device"]),
        (["-cc", "3"], ["-cc 3", "expected a JSON object"]),
        (["-O4"], ["-O 4", "an integer from 0 to 3"]),
        (["-cc", '{"mode": 0, "pass_config": {"fuse": true}}'], ["'pass_config'", "nothing to rewrite"]),
        (
            ["-cc.inductor_compile_config.combo_kernels", "false"],
            ["'inductor_compile_config'", "--optimization-level 3"],
        ),
        (["-cc.cudagraph_sizes=1"], ["'cudagraph_sizes' is no key of it"]),
        (["-cc.local_cache_dir=x"], ["use --compilation-config.cache_dir"]),
        (["--cudagraph-capture-sizes", "1", "x"], ["a list of integers from 1 to 65536"]),
        (["--eplb-config.windw_size", "3"], ["'window_size'"]),
        (["--mm-encoder-attn-dtype", "fp8"], ["fp8", "one device"]),
        (["--mm-encoder-only"], ["--mm-encoder-only", "one device"]),
        (["--runner", "draft"], ["--runner draft", "--speculative-config names a draft model", "expected one of"]),
        (["-spec-draft-tp", "2"], ["--speculative-config.draft_tensor_parallel_size"]),
        (
            ["--kv-cache-dtype", "fp8_inc"],
            ["--kv-cache-dtype fp8_inc", "fp8 stores the same numbers here", "expected one of"],
        ),
        (["--enable-lora=perhaps"], ["--enable-lora perhaps", "true or false"]),
        (["--tensor-paralel-size", "2"], ["unknown", "Did you mean '--tensor-parallel-size'?"]),
    ],
)
def test_spellings_of_the_command_line(words, there):
    (problem,) = problems_of(*words)
    assert all(word in problem for word in there), problem


@pytest.mark.parametrize(
    "words",
    [
        ["-pcp1", "-O2", "-cc", "{}", "--no-enable-lora", "--numa-bind=false"],
        ["-cc.custom_ops", "[]", "-cc.compile_cache_save_format", "binary", "-cc.full_cuda_graph=false"],
        ["--mm-processor-cache-gb", "4", "--model-impl", "vllm", "--ignore-patterns", "original/**/*"],
    ],
)
def test_spellings_of_what_holds_anyway(words):
    assert problems_of(*words) == []


def test_the_value_that_wins_is_the_one_that_counts(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("prefill-context-parallel-size: 2\n")
    (problem,) = merge({"config": str(path)}, {}).problems
    assert f"{path}: prefill_context_parallel_size 2: " in problem
    assert merge({"config": str(path), "prefill_context_parallel_size": Given("1", ORIGIN)}, {}).problems == []


def test_keys_of_a_mapping_are_refused_one_by_one():
    merged = merge({"kernel_config": {"moe_backend": "triton", "ir_op_priority": {}, "linear_backend": "x"}}, {})
    assert len(merged.problems) == 2
    assert "kernel_config.moe_backend 'triton'" in merged.problems[0]


def test_older_names_are_translated_with_a_warning():
    for words, value in (
        (["--disable-log-requests"], False),
        (["--no-disable-log-requests"], True),
        (["--disable-log-requests=false"], True),
    ):
        merged = merge(Parser().parse(words).values, {})
        assert merged.value("enable_log_requests") is value
        assert merged.is_set("enable_log_requests") and merged.problems == []
        assert merged.warnings == [
            "--disable-log-requests: deprecated, last accepted by release 0.3; use --no-enable-log-requests."
        ]
    assert "true or false" in merge({"disable_log_requests": "perhaps"}, {}).problems[0]
    assert merge({"calculate_kv_scales": True}, {}).warnings


def test_older_values_mean_what_is_there_with_a_warning():
    words = "deprecated, last accepted by release 0.3; use sha256, which it means here, as hashes"
    for value in ("builtin",):
        parsed = Parser().parse(["--prefix-caching-hash-algo", value])
        found = merge(parsed.values, {})
        assert found.value("prefix_caching_hash_algo") == "sha256" and found.problems == parsed.problems == []
        assert parsed.warnings[0].startswith(f"--prefix-caching-hash-algo {value}: {words}") and not found.warnings
        plain = merge({"prefix_caching_hash_algo": value}, {})
        assert plain.value("prefix_caching_hash_algo") == "sha256" and plain.problems == []
        assert len(plain.warnings) == 1 and words in plain.warnings[0]
    assert "expected one of 'sha256'" in Parser().parse(["--prefix-caching-hash-algo", "md5"]).problems[0]


def test_what_was_removed_is_told_even_without_a_value():
    for name in ("swap_space", "rope_scaling", "cuda_graph_sizes"):
        for value in (None, [], {}, ""):
            assert merge({name: value}, {}).problems, (name, value)


def test_plugins_may_ask_for_foreign_values():
    values = foreign.WithNeutral({"port": 1})
    assert values["port"] == 1 and values["prefill_context_parallel_size"] == 1 and values["mm_encoder_only"] is False
    assert values["ec_transfer_config"] is None and values["dcp_q_replicate"] is None
    for unknown in ("swap_space", "junk"):
        with pytest.raises(KeyError):
            values[unknown]


def test_served_arguments_do_not_read_the_table():
    import subprocess
    import sys

    code = (
        "import sys; from core_config.arguments.parser import Parser; from core_config.arguments.sources import merge; "
        "merge(Parser().parse(['m', '--port', '1', '-q', 'gguf', '--no-enable-prefix-caching']).values, {}); "
        "print('core_config.arguments.foreign' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("attention", "ROCM_AITER_FA", "docs/plugins/attention.md"),
        ("attention", "TRITON_ATTN", "it is called triton here"),
        ("attention", "AMX_MLA", "on processors it is cpu_paged"),
        ("kernels", "aiter", "docs/plugins/kernels.md"),
        ("platform", "tpu", "a plugin of the kind platform"),
        ("loader", "instanttensor", "fastsafetensors streams the same files"),
    ],
)
def test_names_of_plugins_that_others_have_are_told_what_is_here(kind, name, words):
    with pytest.raises(UserError, match=words):
        PluginRegistry().get(kind, name)


def release(text):
    """The numbers of a release, such as (0, 3)."""
    return tuple(int(number) for number in text.split(".")[:2])


def test_what_is_deprecated_is_still_accepted_and_says_until_when():
    """A release later than that has to take the names out."""
    started = (Path(__file__).parents[2] / "core" / "entrypoints" / "openai" / "api_server.py").read_text()
    assert f"is last in release {foreign.LAST_RELEASE}" in started
    sentences = [row.sentence for row in ROWS if row.kind == "older"]
    assert sentences and all(f"last accepted by release {foreign.LAST_RELEASE}" in text for text in sentences)
    assert release(__version__) <= release(foreign.LAST_RELEASE)
