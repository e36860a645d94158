"""The command line: spellings, conversions, and that every mistake is reported, with the nearest valid name."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.args.arg import Given
from core.args.schema import schema
from core_config.arguments.parser import Parser


def parse(line):
    return Parser().parse(line if isinstance(line, list) else line.split())


def values(line):
    parsed = parse(line)
    assert parsed.problems == []
    return {name: entry.value for name, entry in parsed.values.items()}


@pytest.mark.parametrize(
    "line, expected",
    [
        ("model.gguf", {"model": "model.gguf"}),
        ("--model model.gguf", {"model": "model.gguf"}),
        ("--port 80 model.gguf", {"port": 80, "model": "model.gguf"}),
        ("--max-model-len=1k", {"max_model_len": 1000}),
        ("--max_model_len 1K", {"max_model_len": 1024}),
        ("--max-model-len 25.6k", {"max_model_len": 25600}),
        ("--max-model-len auto", {"max_model_len": -1}),
        ("--kv-cache-memory-bytes 1.5g", {"kv_cache_memory_bytes": 1_500_000_000}),
        ("--kv-cache-memory-bytes 2G", {"kv_cache_memory_bytes": 2 << 30}),
        ("--kv-cache-memory-bytes 3T", {"kv_cache_memory_bytes": 3 << 40}),
        ("--max-num-batched-tokens 0.001m", {"max_num_batched_tokens": 1000}),
        ("--max-model-len -1", {"max_model_len": -1}),
        ("--model-tag m", {"model": "m"}),
        ("--hf-overrides.k+ a --hf-overrides.k+=b,3", {"hf_overrides": {"k": ["a", "b", 3]}}),
        (["--hf-overrides.a.k+=x", "--hf-overrides", '{"b": 1}'], {"hf_overrides": {"a": {"k": ["x"]}, "b": 1}}),
        ("--hf-token --port 1", {"hf_token": None, "port": 1}),
        ("--hf-token abc", {"hf_token": "abc"}),
        ("--generation-config vllm", {"generation_config": "none"}),
        ("-q gguf", {"quantization": "gguf"}),
        ("-q=gguf", {"quantization": "gguf"}),
        ("-O2 -pcp1 -tp2", {"optimization_level": 2, "prefill_context_parallel_size": "1", "tensor_parallel_size": 2}),
        ("--kernels a b --port 1", {"kernels": ["a", "b"], "port": 1}),
        ("--kernels a,b", {"kernels": ["a", "b"]}),
        ("--kv-events-config.buffer-steps 5", {"kv_events_config": {"buffer_steps": 5}}),
        ("--kv-events-config.topic 5", {"kv_events_config": {"topic": "5"}}),
        (["--kv-events-config", '{"hwm": 3}'], {"kv_events_config": {"hwm": 3}}),
        ("--max-logprobs -1", {"max_logprobs": -1}),
        ("--enable-prefix-caching", {"enable_prefix_caching": True}),
        ("--no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--no_enable_prefix_caching m", {"enable_prefix_caching": False, "model": "m"}),
        ("--enable-prefix-caching=false", {"enable_prefix_caching": False}),
        ("--enable-log-requests m", {"enable_log_requests": True, "model": "m"}),
        ("--served-model-name a b --port 1", {"served_model_name": ["a", "b"], "port": 1}),
        (["--allowed-origins", '["http://a", "http://b"]'], {"allowed_origins": ["http://a", "http://b"]}),
        (["--hf-overrides", '{"rope_theta": 5}'], {"hf_overrides": {"rope_theta": 5}}),
        ("--hf-overrides.rope.factor 2", {"hf_overrides": {"rope": {"factor": 2}}}),
        ("--attention-config.torch_sdpa.key text", {"attention_config": {"torch_sdpa": {"key": "text"}}}),
        (
            "-sc.method ngram -sc.num_speculative_tokens 3",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        ),
        (
            ["--speculative-config.method=ngram", "--speculative-config", '{"n": 2}'],
            {"speculative_config": {"n": 2, "method": "ngram"}},
        ),
        ("--quantization none", {"quantization": None}),
        ("-- -strange-", {"model": "-strange-"}),
    ],
)
def test_spellings(line, expected):
    assert values(line) == expected


@pytest.mark.parametrize(
    "line, words",
    [
        ("--prot 80", ["--prot", "Did you mean '--port'?"]),
        ("--no-prefix-cachin", ["unknown", "Did you mean"]),
        ("--dtype bf16", ["--dtype bf16", "'bfloat16'"]),
        ("--port 99999", ["--port 99999", "from 0 to 65535"]),
        ("--port x", ["--port x", "an integer"]),
        ("--port 1.5", ["an integer"]),
        ("--port", ["--port", "value is missing"]),
        ("--port --host x", ["--port", "value is missing"]),
        ("--max-model-len 1.0001k", ["whole number"]),
        ("--max-model-len 1.5K", ["a fraction goes with k", "1.5k is 1500", "1.5K would be 1536"]),
        ("--max-model-len -2", ["from -1"]),
        ("--numerics referense", ["referense", "Did you mean 'reference'?"]),
        ("--kv-events-config.bufer_steps 3", ["--kv-events-config", "'bufer_steps'", "'buffer_steps'"]),
        ("--kv-events-config.buffer_steps many", ["'buffer_steps'", "an integer from 1"]),
        ('--hf-overrides {"a":1,"a":2}', ["'a' is given twice"]),
        ("--hf-overrides.k 1 --hf-overrides.k+ 2", ["no list"]),
        ("-tpx", ["-tpx", "unknown"]),
        ("--max-model-len lots", ["25.6k"]),
        ("--gpu-memory-utilization nan", ["a number"]),
        ("--gpu-memory-utilization 0", ["above 0"]),
        ("--hf-overrides {x", ["not valid JSON"]),
        ("--hf-overrides [1]", ["a JSON object"]),
        ("--hf-overrides..x 1", ["key is empty"]),
        ("--port.x 1", ["unknown"]),
        ("--no-enable-prefix-caching=1", ["takes no value"]),
        ("a b", ["'b'", "already 'a'"]),
        ("a --enable-prefix-caching false", ["'false'", "already 'a'", "--NAME=false, or --no-NAME"]),
        ("--enable-prefix-caching false a", ["'a'", "already 'false'", "--NAME=false, or --no-NAME"]),
        ("-z", ["-z", "unknown"]),
    ],
)
def test_mistakes_say_what_was_expected(line, words):
    (problem,) = parse(line).problems
    for word in words:
        assert word in problem


def test_all_problems_are_reported_together_and_the_rest_is_kept():
    parsed = parse("m --prot 80 --dtype x --seed abc --max-num-seqs 4")
    assert len(parsed.problems) == 3
    assert {name: entry.value for name, entry in parsed.values.items()} == {"model": "m", "max_num_seqs": 4}


def test_a_repeated_argument_warns_and_the_last_one_counts():
    parsed = parse("--port 1 --port 2")
    assert parsed.values["port"] == Given(2, "command line")
    assert "twice" in parsed.warnings[0]
    assert parse("--port 1 --port 1").warnings == []


def test_plain_flags_agree_with_argparse():
    """Oracle: argparse with the same flags, on well-formed lines."""
    oracle = argparse.ArgumentParser(allow_abbrev=False)
    oracle.add_argument("model", nargs="?")
    for field in schema().fields.values():
        plain = field.flags and not field.arg.choices and not field.arg.human and not field.arg.bare
        if field.name != "model" and field.base in (int, str) and plain:
            oracle.add_argument(*field.flags, type=field.base, default=None, dest=field.name)
    for line in (
        "m --port 3 --host=0.0.0.0",
        "--seed 7 m -q gguf",
        "--attention-backend torch_sdpa --max-log-len 5",
        "--response-role=a=b --root-path /x",
    ):
        wanted = {name: value for name, value in vars(oracle.parse_args(line.split())).items() if value is not None}
        assert values(line) == wanted


def test_equal_spellings_give_equal_values_whatever_the_order():
    wanted = {"hf_overrides": {"a": {"b": 1, "c": [1, "x"]}}}
    for line in (
        ["--hf-overrides", '{"a": {"b": 1, "c": [1, "x"]}}'],
        ["--hf-overrides.a.b", "1", "--hf-overrides.a.c", '[1, "x"]'],
        ["--hf_overrides.a.c+=1,x", "--hf-overrides.a.b=1"],
        ["--hf-overrides.a.c+", "1", "--hf-overrides.a.c+", "x", "--hf-overrides.a.b=1"],
    ):
        assert values(line) == wanted, line


def test_parsing_leaves_its_input_alone():
    line = ["--hf-overrides.a.k+=x", "--served-model-name", "a", "b"]
    before = list(line)
    first, second = Parser().parse(line), Parser().parse(line)
    assert line == before and first.values == second.values


@given(st.lists(st.text(max_size=12), max_size=6))
def test_no_line_breaks_the_parser(words):
    parsed = Parser().parse(words)
    assert all(isinstance(problem, str) and problem for problem in parsed.problems)


@given(st.integers(1, 10**9))
def test_numbers_come_back(number):
    assert values(f"--max-num-batched-tokens {number}") == {"max_num_batched_tokens": number}


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "hidden-1", "--api-key", "hidden-2"],
        ["--api-key=hidden-1", "--api_key", "hidden-2", "hidden-3"],
        ["--hf-token", "hidden-1", "--hf-token", "hidden-2"],
        ["--api-key", "[hidden-1"],
        ["--api-keys", "hidden-1"],
        ["--api-key.x", "hidden-1"],
    ],
)
def test_secrets_are_in_no_sentence(words):
    parsed = Parser().parse(words)
    said = parsed.problems + parsed.warnings
    assert said and "hidden" not in str(said)
