"""A KV connector of a separate package serves prefixes that left the pool, in the same process and in a later one. Oracle for
the text: the engine without it."""

from __future__ import annotations

import json

import pytest

SCRIPT = """
import json, sys
from core import LLM, SamplingParams

settings, prompts = json.loads(sys.argv[1]), json.loads(sys.argv[2])
asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
room = {"max_model_len": 128, "num_gpu_blocks_override": 10, "max_num_seqs": 1, "dtype": "float32"}
with LLM(use_tqdm_on_load=False, **room, **settings) as llm:
    for prompt in prompts:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)
        print(json.dumps([output.outputs[0].token_ids, output.num_cached_tokens]), flush=True)
    print(json.dumps(llm.stats().tier_hits))
"""
FIRST, *OTHERS = ([1, *range(start, start + 96)] for start in (3, 103, 203))
PROMPTS = [FIRST, *OTHERS, FIRST]


@pytest.fixture(scope="module")
def generated(python, tiny_llama, tmp_path_factory):
    """{run: ([(tokens, cached tokens) of each prompt], tokens from connectors)}: without the connector, with it, and in a
    later process with the same directory."""
    shelf = {"kv_connector": "shelf", "kv_connector_extra_config": {"directory": str(tmp_path_factory.mktemp("shelf"))}}
    found = {}
    for name, more in {
        "without": {},
        "with": {"kv_transfer_config": shelf},
        "later": {"kv_transfer_config": shelf},
    }.items():
        prompts = [FIRST] if name == "later" else PROMPTS
        done = python("-c", SCRIPT, json.dumps({"model": str(tiny_llama), **more}), json.dumps(prompts))
        assert done.returncode == 0, done.stderr[-3000:]
        *lines, hits = [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "[0123456789"]
        found[name] = lines, hits
    return found


def test_an_evicted_prefix_is_served_with_the_same_tokens(generated):
    without, no_hits = generated["without"]
    served, hits = generated["with"]
    assert [tokens for tokens, _ in served] == [tokens for tokens, _ in without]
    assert without[-1][1] == no_hits == 0, "without the connector the prefix is gone"
    assert served[-1][1] == hits == 96


def test_a_later_process_finds_the_pages(generated):
    (first,), hits = generated["later"]
    assert first[0] == generated["without"][0][0][0]
    assert first[1] == hits == 96


def test_it_passes_the_kit(core, tmp_path):
    done = core("plugins", "check", "kv_connector.shelf", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_named(core, tiny_llama):
    for words, sentence in {
        ("kv_connector", "shelve"): "shelf",
        ("kv_connector", "tiers"): "--kv-offloading-size",
        ("kv_connector_extra_config.directory", "x"): "names no connector",
    }.items():
        key, value = words
        done = core("config", "explain", str(tiny_llama), f"--kv-transfer-config.{key}", value)
        assert done.returncode == 2 and sentence in done.stderr, done.stderr
    shelf = ("--kv-transfer-config.kv_connector", "shelf")
    done = core(
        "config", "explain", str(tiny_llama), *shelf, "--kv-transfer-config.kv_connector_extra_config.directori", "x"
    )
    assert done.returncode == 2 and "directory" in done.stderr, done.stderr
    done = core("config", "explain", str(tiny_llama), *shelf, "--kv-transfer-config.kv_role", "kv_producer")
    assert done.returncode == 2 and "one instance both saves and loads" in done.stderr, done.stderr
