"""Connectors in vLLM's form: pages go to all parts of a MultiConnector, and are found in the first one that has them."""

import shutil

from core import LLM, SamplingParams

ASKED = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
FIRST, SECOND, THIRD = ([1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7))
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 10, "max_num_seqs": 1, "dtype": "float32"}


def run(model, near, far, prompts):
    """Tokens of each answer, and the tokens of the last prompt that were cached."""
    parts = [
        {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": str(near)}},
        {"kv_connector": "file", "kv_connector_extra_config": {"directory": str(far)}},
    ]
    transfer = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": parts}}
    answers = []
    with LLM(str(model), use_tqdm_on_load=False, kv_transfer_config=transfer, **ROOM) as llm:
        for prompt in prompts:
            (output,) = llm.generate([{"prompt_token_ids": prompt}], ASKED, use_tqdm=False)
            answers.append(output.outputs[0].token_ids)
    return answers, output.num_cached_tokens


def test_each_part_of_a_multiconnector_has_the_pages(tiny_llama, tmp_path):
    near, far = tmp_path / "near", tmp_path / "far"
    (first, *_), _ = run(tiny_llama, near, far, [FIRST, SECOND, THIRD])
    assert sorted(path.name for path in near.glob("*/*.kv")) == sorted(path.name for path in far.glob("*/*.kv"))
    for lost in (near, far):
        shutil.rmtree(lost)
        answers, cached = run(tiny_llama, near, far, [FIRST])
        assert answers == [first] and cached == 96, f"without {lost.name}"
