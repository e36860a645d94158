"""Whatever is written on the command line or in a file: a configuration or sentences, never anything else."""

import os
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.api.errors import ConfigError
from core.args.schema import schema
from core.plugin.registry import PluginRegistry
from core_config.arguments import foreign
from core_config.arguments.parser import Parser
from core_config.arguments.sources import merge
from core_config.resolve import Resolution, resolve

FIELDS = [field for field in schema().fields.values() if field.flags and field.name not in ("config", "plugins")]
FOREIGN = foreign.names()
FLAGS = sorted({flag for field in FIELDS for flag in field.flags} | {row.flag for row in FOREIGN})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["auto", "none", "1k", "1.5K", "-1", "0", "true", "nan", "inf", "1e999", "{", "[1", '{"a": 1}', "a=1"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["", ".a", ".a.b", ".mode", ".level", ".k+", "..", ".", "+", "=", "=1", ".method=ngram", "=null"]
)
WORDS = st.one_of(
    st.builds(lambda flag, key: flag + key, st.sampled_from(FLAGS), KEYS),
    st.builds(lambda flag: "--no-" + flag.lstrip("-"), st.sampled_from(FLAGS)),
    SCALARS.map(str),
    st.text(max_size=10),
)


@pytest.fixture(scope="module")
def registry():
    return PluginRegistry()


def check_resolution(arguments, problems, registry):
    """Either a configuration, or sentences."""
    try:
        done = resolve(arguments, context="serve", registry=registry, environ={}, problems=problems)
    except ConfigError as error:
        assert error.problems and all(isinstance(text, str) and text.strip() for text in error.problems)
        assert all("Traceback" not in text for text in error.problems)
    else:
        assert isinstance(done, Resolution) and not problems


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS, max_size=8))
def test_command_lines_are_read(words):
    parsed = Parser().parse(words)
    assert all(isinstance(text, str) and text for text in [*parsed.problems, *parsed.warnings])
    again = Parser().parse(words)
    assert (again.problems, repr(again.values)) == (parsed.problems, repr(parsed.values))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, max_size=6))
def test_command_lines_resolve_or_are_refused(registry, tiny_llama, words):
    parsed = Parser().parse(words)
    arguments = {key: value for key, value in parsed.values.items() if key not in ("model", "tokenizer", "config")}
    check_resolution({**arguments, "model": str(tiny_llama)}, parsed.problems, registry)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([entry.name for entry in (*FIELDS, *FOREIGN)] + ["junk"]), VALUES, max_size=5))
def test_files_resolve_or_are_refused(registry, tiny_llama, document):
    document = {key: value for key, value in document.items() if key not in ("model", "tokenizer", "model_tag")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        check_resolution({"config": str(path), "model": str(tiny_llama)}, [], registry)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_as_a_file(content):
    handle, path = tempfile.mkstemp(suffix=".yaml")
    try:
        os.write(handle, content)
        os.close(handle)
        merged = merge({"config": path}, {})
        assert all(isinstance(text, str) and text for text in merged.problems)
        assert set(merged.values) == set(schema().fields)
    finally:
        os.unlink(path)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(FIELDS), VALUES)
def test_any_keyword_value_is_understood_or_refused(field, value):
    merged = merge({field.name: value}, {})
    assert all(isinstance(text, str) and text for text in merged.problems)
    assert merged.problems or merged.is_set(field.name) or merged.value(field.name) is None or value is None


@pytest.mark.parametrize(
    "content",
    [
        "a: &a [*a]",
        "? [1]\n: 2",
        "!!python/object/apply:os.system ['true']",
        "a: 1\n---\nb: 2",
        "[" * 2000,
        "2: 3",
        "port: 0x50",
    ],
)
def test_odd_files(tmp_path, content):
    path = tmp_path / "engine.yaml"
    path.write_text(content)
    merged = merge({"config": str(path)}, {})
    assert merged.problems if "0x50" not in content else merged.value("port") == 80


def test_nonsense_over_all_groups_is_one_report(registry, tiny_llama):
    words = ["--no-such-thing", "1", "--swap-space", "4"]
    groups = set()
    for field in FIELDS:
        if field.group in groups or field.name in ("model", "tokenizer", "plugins"):
            continue
        if field.arg.choices or field.base in (int, float, bool):
            words += [f"{field.flag}=nonsense"]
            groups.add(field.group)
    words += ["--prefill-context-parallel-size", "7", "--enable-lora"]
    parsed = Parser().parse(words)
    with pytest.raises(ConfigError) as caught:
        resolve(
            {**parsed.values, "model": str(tiny_llama)},
            context="serve",
            registry=registry,
            environ={},
            problems=parsed.problems,
        )
    told = "\n".join(caught.value.problems)
    assert len(groups) >= 8
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in told, word
