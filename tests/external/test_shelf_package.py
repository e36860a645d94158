"""A KV connector of a separate package serves prefixes that left the pool, in the same engine and in a later one. Oracle for
the text: the engine without it."""

import json

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from core import LLM, SamplingParams

def run(settings, prompts):
    asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    room = {"max_model_len": 128, "num_gpu_blocks_override": 10, "max_num_seqs": 1, "dtype": "float32"}
    answers = []
    with LLM(use_tqdm_on_load=False, **room, **settings) as llm:
        for prompt in prompts:
            (output,) = llm.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)
            answers.append([output.outputs[0].token_ids, output.num_cached_tokens])
        return answers, llm.stats().tier_hits

print(json.dumps({name: run(*job) for name, job in json.loads(sys.argv[1]).items()}))
"""
FIRST, *OTHERS = ([1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7))
PROMPTS = [FIRST, *OTHERS, FIRST]


@pytest.fixture(scope="module")
def answers(python, tiny_llama, tmp_path_factory):
    """{run: ([(tokens, cached tokens) of each prompt], tokens from connectors)}: without the connector, with it, and of a later
    engine with the same directory."""
    shelf = {"kv_connector": "shelf", "kv_connector_extra_config": {"directory": str(tmp_path_factory.mktemp("shelf"))}}
    plain = {"model": str(tiny_llama)}
    shelved = plain | {"kv_transfer_config": shelf}
    jobs = {"without": (plain, PROMPTS), "with": (shelved, PROMPTS), "later": (shelved, [FIRST])}
    done = python("-c", SCRIPT, json.dumps(jobs))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_an_evicted_prefix_is_served_with_the_same_tokens(answers):
    without, no_hits = answers["without"]
    served, hits = answers["with"]
    assert [tokens for tokens, _ in served] == [tokens for tokens, _ in without]
    assert without[-1][1] == no_hits == 0, "without the connector the prefix is gone"
    assert served[-1][1] == hits == 96


def test_a_later_engine_finds_the_pages(answers):
    (first,), hits = answers["later"]
    assert first[0] == answers["without"][0][0][0]
    assert first[1] == hits == 96


def test_it_passes_the_kit(core, tmp_path):
    done = core("plugins", "check", "kv_connector.shelf", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_arguments_are_checked(core, tiny_llama):
    shelf = ("--kv-transfer-config.kv_connector", "shelf")
    wrong = "--kv-transfer-config.kv_connector_extra_config.directori"
    done = core("config", "explain", str(tiny_llama), *shelf, wrong, "x")
    assert done.returncode == 2 and f"{wrong}" in done.stderr and "directory" in done.stderr, done.stderr
