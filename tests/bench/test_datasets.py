"""Datasets: lengths, repeatability, files in the forms of others."""

import json

import pytest

from core.api.errors import UserError
from core_commands.bench.dataset_options import NAMES, OTHER_NAMES, DatasetOptions
from core_commands.bench.datasets import DATASETS, REFUSED, prompts


def make(name, **options):
    return prompts(DatasetOptions(dataset_name=name, **options))


def test_the_names_are_those_of_the_rows():
    assert tuple(DATASETS) == NAMES
    assert tuple(REFUSED) == OTHER_NAMES
    for name in OTHER_NAMES:
        with pytest.raises(UserError, match=name):
            make(name)


def test_random_lengths_and_prefixes():
    options = {"num_prompts": 200, "random_input_len": 50, "random_output_len": 20, "random_prefix_len": 7}
    made = make("random", random_range_ratio=0.2, **options)
    sizes = {len(prompt.text.split()) - 7 for prompt in made}
    assert min(sizes) == 40 and max(sizes) == 60
    assert {prompt.max_tokens for prompt in made} == set(range(16, 25))
    assert len({tuple(prompt.text.split()[:7]) for prompt in made}) == 1
    assert len({prompt.text for prompt in made}) == 200
    assert made == make("random", random_range_ratio=0.2, **options)
    assert made != make("random", random_range_ratio=0.2, seed=1, **options)
    assert {len(prompt.text.split()) for prompt in make("random", **options)} == {57}


def test_prefixes_are_few_and_endings_many():
    made = make("prefix_repetition", num_prompts=40, prefix_repetition_num_prefixes=4, prefix_repetition_prefix_len=30)
    prefixes = [tuple(prompt.text.split()[:30]) for prompt in made]
    assert {prefixes.count(prefix) for prefix in prefixes} == {10}
    assert len({prompt.text for prompt in made}) == 40
    assert {len(prompt.text.split()) for prompt in made} == {286}


def test_json_prompts_carry_their_schema(tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    own = make("json", num_prompts=1, json_schema_path=str(tmp_path / "schema.json"))
    assert own[0].extra["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert make("json", num_prompts=3)[2].extra["response_format"]["type"] == "json_schema"
    with pytest.raises(UserError, match="cannot be read"):
        make("json", json_schema_path="absent")


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 3}\n\nplain words\n{"prompt": "two"}\n')
    made = make("custom", dataset_path=str(path), num_prompts=3)
    assert {prompt.text for prompt in made} == {"one", "two", "plain words"}
    assert {prompt.max_tokens for prompt in made} == {256}
    assert len(make("custom", dataset_path=str(path), num_prompts=10)) == 10
    assert len(make("custom", dataset_path=str(path), num_prompts=10, oversample=False)) == 3
    path.write_text('{"prompt": "one", "output_tokens": 3}\n')
    assert make("custom", dataset_path=str(path), num_prompts=1, custom_output_len=None)[0].max_tokens == 3
    assert make("custom", dataset_path=str(path), num_prompts=1, output_len=9)[0].max_tokens == 9


def test_conversations_of_sharegpt(tmp_path):
    question, answer = "What is the capital of France?", "It is Paris, as everybody knows. " * 4
    rows = [
        {"id": "1", "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]},
        {"id": "2", "conversations": [{"from": "human", "value": question}]},
        {"id": "3", "conversations": [{"from": "human", "value": "x" * 10_000}, {"from": "gpt", "value": answer}]},
        {"id": "4", "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": "no"}]},
    ]
    path = tmp_path / "share.json"
    path.write_text(json.dumps(rows))
    made = make("sharegpt", dataset_path=str(path), num_prompts=2)
    assert [(prompt.text, prompt.max_tokens) for prompt in made] == [(question, len(answer) // 4)] * 2
    assert {prompt.max_tokens for prompt in make("sharegpt", dataset_path=str(path), sharegpt_output_len=9)} == {9}


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("custom", "", "no usable prompt"),
        ("custom", '{"text": "x"}', "has no text 'prompt'"),
        ("custom", '{"prompt": "x", "output_tokens": 0}', "output_tokens is 0"),
        ("sharegpt", "{}", "not in ShareGPT's form"),
        ("sharegpt", "[[", "not in ShareGPT's form"),
        ("sharegpt", "[]", "no usable prompt"),
        ("random", "x", "reads no file"),
    ],
)
def test_wrong_files_are_sentences(tmp_path, name, text, expected):
    (tmp_path / "file").write_text(text)
    with pytest.raises(UserError, match=expected):
        make(name, dataset_path=str(tmp_path / "file"), custom_output_len=None)


def test_missing_files_are_sentences():
    with pytest.raises(UserError, match="needs a file"):
        make("sharegpt")
    with pytest.raises(UserError, match="cannot be read"):
        make("custom", dataset_path="absent")
