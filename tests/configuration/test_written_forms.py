"""One configuration, however it is written: command line, keyword arguments, YAML, and what `core config show` prints."""

import json

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.api.errors import ConfigError
from core.args.schema import schema
from core_commands.cli.config_schema import DIALECT, json_schema
from core_config.arguments.parser import Parser
from core_config.arguments.reach import means_nothing_to_llm
from core_config.arguments.sources import merge
from core_config.document import as_yaml
from core_config.resolve import resolve

NOT_FREE = {"config", "model", "plugins", "device", "load_format", "quantization", "node_rank"}
TEXT = st.text("abcxyz019_", min_size=1, max_size=6)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def values_of(field):
    """Values of one argument that are declared and served."""
    arg = field.arg
    if arg.choices:
        return st.lists(st.sampled_from(arg.choices), max_size=2) if field.is_list else st.sampled_from(arg.choices)
    low = arg.ge if arg.ge is not None else arg.gt if arg.gt is not None else 0
    high = arg.le if arg.le is not None else low + 1000
    kinds = {
        bool: st.booleans(),
        int: st.integers(int(low) + (arg.gt is not None), int(high)),
        float: st.sampled_from([(low + high) / 2, (low + 3 * high) / 4]),
        str: TEXT,
    }
    if field.base in kinds:
        return kinds[field.base]
    if field.is_list:
        return st.lists(kinds[field.item], min_size=1, max_size=3)
    if field.keys:
        return st.just({})
    return st.dictionaries(TEXT, st.one_of(st.integers(), st.booleans(), TEXT, st.none()), max_size=2)


@st.composite
def arguments(draw):
    fields = {n: f for n, f in schema().fields.items() if n not in NOT_FREE}
    names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=8, unique=True))
    found = {name: draw(values_of(fields[name])) for name in names}
    return {name: value for name, value in found.items() if value is not None and value != []}


def command_line(values):
    words = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool) and schema().fields[name].base is bool:
            words.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, (dict, list)):
            words.append(f"{flag}={json.dumps(value)}")
        else:
            words.append(f"{flag}={value}")
    return words


def outcome(values, registry, problems=()):
    """Configuration, or the number of problems."""
    try:
        done = resolve(values, context="llm", registry=registry, environ={}, problems=problems)
    except ConfigError as error:
        return len(error.problems)
    return done.engine, done.server


@SLOW
@given(values=arguments())
def test_three_ways_to_write_it_are_equal(values, registry, tiny_llama, tmp_path_factory):
    # a keyword that only a server reads is refused, where a file may be a server's too
    values = {name: value for name, value in values.items() if not means_nothing_to_llm(schema().fields[name])}
    named = {"model": str(tiny_llama), "device": "cpu", **values}
    parsed = Parser().parse([str(tiny_llama), "--device", "cpu", *command_line(values)])
    assert not parsed.problems
    file = tmp_path_factory.mktemp("yaml") / "c.yaml"
    file.write_text(yaml.safe_dump(named))
    by_name, by_words, by_file = (merge(v, {}) for v in (named, parsed.values, {"config": str(file)}))
    for name in schema().fields:
        if name != "config":
            assert by_name.value(name) == by_words.value(name) == by_file.value(name), name
    first = outcome(named, registry)
    assert first == outcome(parsed.values, registry)
    assert first == outcome({"config": str(file)}, registry)


FED_BACK = [
    {},
    {"max_model_len": 100, "dtype": "half"},
    {"num_gpu_blocks_override": 11},
    {"gpu_memory_utilization": 0.03},
    {"enable_chunked_prefill": False, "max_model_len": "auto"},
    {"max_num_batched_tokens": 32, "seed": 0},
    {"max_num_seqs": 5000},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}},
    {"speculative_config": {"method": "suffix", "suffix_decoding_max_tree_depth": 9}},
    {"served_model_name": ["a", "b"], "hf_overrides": {"x": {"y": 1}}, "chat_template": "{{ 'ü' }}", "api_key": ["k"]},
    {"attention_backend": "torch_sdpa", "platform_config": {"threads": 2}},
    {"optimization_level": 0},
    {"optimization_level": 3},
    {"compilation_config": {"mode": "NONE", "custom_ops": [], "cudagraph_capture_sizes": "2,1"}},
]


@pytest.mark.parametrize("arguments", FED_BACK, ids=lambda a: ",".join(a) or "none")
@pytest.mark.parametrize("family", ["tiny_llama", "tiny_gemma3"])
def test_what_is_shown_gives_the_same_configuration(registry, request, tmp_path, family, arguments):
    if arguments.get("dtype") == "half":
        arguments = arguments | {"dtype": "float"}
    model = str(request.getfixturevalue(family))
    done = resolve({"model": model, **arguments}, context="serve", registry=registry, environ={})
    text = as_yaml(done, secrets=True)
    (tmp_path / "c.yaml").write_text(text)
    again = resolve({"config": str(tmp_path / "c.yaml")}, context="serve", registry=registry, environ={})
    assert again.engine == done.engine
    assert again.server == done.server
    assert as_yaml(again, secrets=True) == text
    document = yaml.safe_load(text)
    assert not list(jsonschema.Draft202012Validator(json_schema(registry)).iter_errors(document))


def test_secrets_are_shown_only_when_asked(registry, tiny_llama):
    done = resolve({"model": str(tiny_llama), "hf_token": "word"}, context="serve", registry=registry, environ={})
    assert "word" not in as_yaml(done) and "# hf_token" in as_yaml(done)
    assert "hf_token: word" in as_yaml(done, secrets=True)


def test_the_schema_is_valid_and_knows_everything(registry):
    made = json.loads(json.dumps(json_schema(registry)))
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"] == DIALECT
    assert set(schema().fields) <= set(made["properties"])
    assert "platform.cpu.CpuArguments" in made["$defs"]
    for name, node in made["properties"].items():
        if "default" in node:
            alone = jsonschema.Draft202012Validator({**node, "$defs": made["$defs"]})
            assert not list(alone.iter_errors(node["default"])), name


@pytest.mark.parametrize(
    "document",
    [
        {"max_num_seqs": 0},
        {"max_num_seq": 1},
        {"dtype": "int3"},
        {"platform_config": {"threads": "many"}},
        {"platform_config": {"thread": 1}},
        {"speculative_config": {"num_speculative_tokens": 1}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 0}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 1, "rejection_sample_method": "lucky"}},
        {
            "speculative_config": {
                "method": "draft_model",
                "model": "m",
                "num_speculative_tokens": 1,
                "max_model_len": 0,
            }
        },
        {"enable_lora": "perhaps"},
        {"optimization_level": 4},
        {"cudagraph_capture_sizes": [0]},
        {"compilation_config": {"custom_ops": ["+norm"]}},
        {"compilation_config": {"full_cuda_graph": True}},
    ],
)
def test_the_schema_refuses_what_the_engine_refuses(registry, tiny_llama, document):
    assert list(jsonschema.Draft202012Validator(json_schema(registry)).iter_errors(document))
    with pytest.raises(ConfigError):
        resolve({"model": str(tiny_llama), **document}, context="serve", registry=registry, environ={})
