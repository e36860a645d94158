"""Packages written for a contract number work, unedited, for as long as the engine accepts the number."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from core.plugin.manifest import ACCEPTED_CONTRACTS

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DIGESTS = {
    "frozen_contract_1": "47c43bf064db42a6a916fdbbd406c34ea10ca42670f2530071ee7e82cbd96057",
    "frozen_contract_grammar_1": "54c508010784491b2fb91844997bfd2c8652bc4a7f10143f9863b4f92453cc63",
}
FROZEN = sorted(path.name for path in HERE.glob("frozen_contract_*") if path.is_dir())


def digest(folder):
    """Of the names and bytes of a package's sources."""
    found = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.toml")]):
        if "build" not in path.relative_to(folder).parts:
            found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_package_is_as_it_was(name):
    assert digest(HERE / name) == DIGESTS[name], f"{name} was edited; mend the engine instead"


def test_the_current_number_has_a_frozen_package():
    numbers = {int(re.search(r"\d+$", name)[0]) for name in FROZEN}
    assert max(ACCEPTED_CONTRACTS) in numbers, "freeze a copy of the example when the contract number rises"


def test_every_frozen_plugin_can_be_used(core):
    rows = [row for row in json.loads(core("plugins", "list", "--json").stdout) if row["name"].startswith("frozen_")]
    assert len(rows) == 7
    for row in rows:
        assert (row["status"], row["reason"], row["contract"]) == ("available", "", 1)


GENERATE = """
import json, sys
from core import LLM, SamplingParams
def tokens(**settings):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(model=sys.argv[1], use_tqdm_on_load=False, max_model_len=128, dtype="float32", **settings) as llm:
        prompts = [{"prompt_token_ids": [1, *range(40, 60)]}, {"prompt_token_ids": [1, 70]}]
        return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
frozen = dict(
    device="frozen_cpu", quantization="frozen_int8", attention_backend="frozen_naive",
    speculative_config={"method": "frozen_repeat", "num_speculative_tokens": 2},
)
print(json.dumps([tokens(**frozen), tokens(quantization="example_int8"), tokens()]))
"""


def test_frozen_plugins_generate_what_todays_do(python, tiny_llama):
    done = python("-c", GENERATE, str(tiny_llama))
    assert done.returncode == 0, done.stderr[-2000:]
    frozen, today, plain = json.loads(done.stdout.splitlines()[-1])
    assert frozen == today
    assert frozen != plain


CHOOSE = """
import json, sys
from core import LLM, SamplingParams
from core.api.structured_outputs import StructuredOutputsParams

choices = ["abc", "xyz"]
if __name__ == "__main__":
    settings = {"structured_outputs_config": {"backend": "frozen_choice"}, "use_tqdm_on_load": False, "max_model_len": 128}
    params = SamplingParams(temperature=1, seed=1, max_tokens=12, structured_outputs=StructuredOutputsParams(choice=choices))
    with LLM(model=sys.argv[1], **settings) as llm:
        print(llm.get_tokenizer().eos_token_id)
        (output,) = llm.generate([{"prompt_token_ids": [1, 70]}], params, use_tqdm=False)
        print(json.dumps([output.outputs[0].text, output.outputs[0].finish_reason]))
"""


def test_a_frozen_grammar_backend_constrains_an_answer(python, tiny_llama):
    done = python("-c", CHOOSE, str(tiny_llama))
    assert done.returncode == 0, done.stderr[-2000:]
    text, reason = json.loads(done.stdout.splitlines()[-1])
    assert text in ("abc", "xyz") and reason == "stop"
