"""What a request asks for becomes a specification, or a sentence."""

import contextlib
import json
import time

import pytest

from core.api.config import StructuredOutputsConfig
from core.api.errors import RequestError
from core.api.structured_outputs import StructuredOutputsParams as Params
from core_grammars.names import note, served_backend
from core_grammars.spec import MAX_NESTING, as_text, grammar_spec

CONFIG = StructuredOutputsConfig()
LARK = 'start: "a" NUMBER\nNUMBER: /[0-9]+/'
EBNF = 'root ::= "a" [0-9]+'


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("params", "kind", "text"),
    [
        (Params(json={"b": 1, "a": {}}), "json_schema", '{"b":1,"a":{}}'),
        (Params(json='{ "type" : "object" }'), "json_schema", '{"type":"object"}'),
        (Params(json=False), "json_schema", "false"),
        (Params(json_object=True), "json_object", ""),
        (Params(regex="^a|b$"), "regex", "a|b"),
        (Params(regex=r"a\$"), "regex", r"a\$"),
        (Params(regex=r"a\\$"), "regex", r"a\\"),
        (Params(choice=["ä", 'b"', "ä"]), "choice", '["ä", "b\\""]'),
        (Params(grammar=EBNF), "ebnf", EBNF),
        (Params(grammar=LARK), "lark", LARK),
        (Params(structural_tag='{"format": {"type": "any_text"}}'), "structural_tag", None),
    ],
)
def test_each_kind_is_read(params, kind, text):
    spec = grammar_spec(params, CONFIG)
    assert spec.kind == kind
    assert text is None or spec.text == text


def test_older_structural_tags_become_newer_ones():
    structure = {"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}
    spec = grammar_spec(Params(structural_tag={"structures": [structure], "triggers": ["<f"]}), CONFIG)
    tags = json.loads(spec.text)["format"]
    assert tags["type"] == "triggered_tags" and tags["triggers"] == ["<f"]
    assert tags["tags"][0]["content"] == {"type": "json_schema", "json_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (Params(), "exactly one of json"),
        (Params(json={}, regex="a"), "json and regex"),
        (Params(json="{"), "not valid JSON"),
        (Params(json="[1]"), "a list"),
        (Params(json={"a": float("nan")}), "no JSON"),
        (Params(json={"a": object()}), "no JSON"),
        (Params(json=deep(MAX_NESTING + 1)), "levels"),
        (Params(json="[" * 100_000), "nested too deeply"),
        (Params(regex=""), "empty"),
        (Params(regex="\ud800"), "surrogate"),
        (Params(choice=[]), "empty"),
        (Params(choice=["a", 1]), "list of texts"),
        (Params(grammar="hello"), "no rule"),
        (Params(structural_tag={"a": 1}), '"format"'),
        (Params(json={"const": "x" * 2_000_000}), "--structured-outputs-config.max-grammar-size"),
        (Params(regex="a", whitespace_pattern=" "), "for JSON alone"),
        (Params(json={}, whitespace_pattern="("), "no regular expression"),
        (Params(json={}, whitespace_pattern="[a-b]" * 300), "at most 1024"),
        (Params(json={}, whitespace_pattern=" ", disable_any_whitespace=True), "leave one out"),
    ],
)
def test_what_has_no_form_is_refused(params, words):
    with pytest.raises(RequestError) as caught:
        grammar_spec(params, CONFIG)
    assert words in str(caught.value) and caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "params",
    [
        Params(grammar="\n" * 2000),
        Params(grammar="x" * 2000),
        Params(regex="(" * 2000),
        Params(json="[" * 2000),
        Params(structural_tag="{" * 2000),
        Params(choice=["x" * 1000, "y" * 1000]),
    ],
)
def test_the_size_of_a_text_is_checked_before_anybody_reads_it(params):
    with pytest.raises(RequestError) as caught:
        grammar_spec(params, StructuredOutputsConfig(max_grammar_size=1000))
    assert "has 2000 bytes" in str(caught.value) and "max-grammar-size" in str(caught.value)


@pytest.mark.parametrize("text", ["\n", "a\n", "\n ", "a{}[", "a[]", "a.1", "a{", "?a{[}]"])
def test_time_to_read_a_grammar_grows_with_its_length(text):
    def seconds(length):
        params = Params(grammar=text * (length // len(text)) + "'")
        taken = []
        for _ in range(3):
            begin = time.thread_time()
            with contextlib.suppress(RequestError):
                grammar_spec(params, CONFIG)
            taken.append(time.thread_time() - begin)
        return min(taken)

    # Eight times the text: some 8 where time grows with the length, 64 where it grows with its square.
    assert seconds(12_000) < 30 * seconds(1500)


@pytest.mark.parametrize(
    "text",
    ["\n\n  start: A\n", "a{x, y}: x y", "A[lazy]: /x/", 'A[capture="]"]: /x/', "A.-2: /x/", "?a\n : b", "!a: b"],
)
def test_rules_of_lark_are_known_in_all_their_forms(text):
    assert grammar_spec(Params(grammar=text), CONFIG).kind == "lark"


def test_schemas_cross_processes_as_text():
    schema = {"type": "object", "properties": {"ä": {"const": 1.5}}}
    held = as_text(Params(json=schema, whitespace_pattern=" ?"), 1000)
    assert isinstance(held.json, str) and grammar_spec(held, CONFIG) == grammar_spec(
        Params(json=schema, whitespace_pattern=" ?"), CONFIG
    )
    with pytest.raises(RequestError, match="max-grammar-size"):
        as_text(Params(structural_tag={"format": {"type": "const_string", "value": "x" * 1000}}), 1000)


def test_options_come_from_the_request_or_the_arguments():
    spec = grammar_spec(Params(json={}), StructuredOutputsConfig(disable_any_whitespace=True))
    assert not spec.any_whitespace and spec.additional_properties
    spec = grammar_spec(Params(json={}, disable_additional_properties=True), CONFIG)
    assert spec.any_whitespace and not spec.additional_properties
    tag = {"format": {"type": "json_schema", "json_schema": {}}}
    tight = StructuredOutputsConfig(disable_any_whitespace=True, disable_additional_properties=True)
    spec = grammar_spec(Params(structural_tag=tag), tight)
    assert not spec.any_whitespace and not spec.additional_properties
    assert grammar_spec(Params(structural_tag=tag, whitespace_pattern=" ?"), tight).whitespace_pattern == " ?"


def test_names_of_other_engines():
    assert served_backend("guidance") == "llguidance"
    assert served_backend("lm-format-enforcer") is None and "first backend" in note("lm-format-enforcer")
    assert served_backend("auto") is None and not note("auto")
    assert served_backend("xgrammar:no-fallback") == "xgrammar"
