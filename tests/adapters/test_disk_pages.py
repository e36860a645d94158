"""A name that stands for other weights never finds what its old ones left: pages on disk, and states in memory."""

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter

PROMPT = [1, *range(40, 80)]
ASKED = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3)


def open_llm(model: Path, **settings: object) -> LLM:
    given = {"dtype": "float32", "max_model_len": 128, "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
    return LLM(model=str(model), enable_lora=True, max_cpu_loras=2, use_tqdm_on_load=False, **given | settings)


def ask(llm: LLM, adapter: Path, in_place: bool = False) -> tuple[list, int]:
    """Return the numbers of an answer of the adapter `sql`, and how many tokens of its prompt were found."""
    wanted = LoRARequest("sql", 1, str(adapter), load_inplace=in_place)
    (output,) = llm.generate([PROMPT], ASKED, lora_request=wanted, use_tqdm=False)
    rows = [{token: entry.logprob for token, entry in row.items()} for row in output.outputs[0].logprobs]
    return rows, output.num_cached_tokens


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_gemma3"])
def test_pages_on_disk_are_those_of_the_weights_and_not_of_the_name(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(family)
    shapes = shapes_of(str(model))
    old, new = (write_adapter(tmp_path / name, shapes, 8, seed, 0.2) for seed, name in enumerate(("old", "new")))
    with open_llm(model, enable_prefix_caching=False) as llm:
        expected = {path: ask(llm, path, in_place=True)[0] for path in (old, new)}
    assert expected[old] != expected[new]
    disk = {"kv_offloading_disk_path": str(tmp_path / "kv"), "kv_offloading_disk_size": 0.01}
    with open_llm(model, **disk) as llm:
        assert ask(llm, old) == (expected[old], 0)
        assert ask(llm, new, in_place=True) == (expected[new], 0), "in place, beside what memory and disk hold"
    # A folder whose files have changed is the same name and the same path.
    for path in new.iterdir():
        old.joinpath(path.name).write_bytes(path.read_bytes())
    fresh = write_adapter(tmp_path / "fresh", shapes, 8, 2, 0.2)
    with open_llm(model, **disk) as llm:
        rows, found = ask(llm, old)
        assert rows == expected[new]
        assert found == llm.stats().tier_hits > 16, "the new weights find their own pages"
        _, found = ask(llm, fresh, in_place=True)
        assert found == 0


def test_states_in_memory_are_those_of_the_weights_and_not_of_the_name(tiny_lfm2: Path, tmp_path: Path) -> None:
    shapes = shapes_of(str(tiny_lfm2))
    old, new = (write_adapter(tmp_path / name, shapes, 8, seed, 0.2) for seed, name in enumerate(("old", "new")))
    with open_llm(tiny_lfm2, enable_prefix_caching=False) as llm:
        expected = {path: ask(llm, path, in_place=True)[0] for path in (old, new)}
    assert expected[old] != expected[new]
    with open_llm(tiny_lfm2, mamba_block_size=8) as llm:
        assert ask(llm, old) == (expected[old], 0)
        rows, found = ask(llm, old)
        assert rows == expected[old] and found > 16
        assert ask(llm, new, in_place=True) == (expected[new], 0)


def test_pages_of_another_type_of_its_matrices_are_not_found(tiny_llama: Path, tmp_path: Path) -> None:
    """The same files in another `--lora-dtype` compute other keys and values."""
    adapter = write_adapter(tmp_path / "adapter", shapes_of(str(tiny_llama)), 8, 1, 0.2)
    narrow = {"lora_dtype": "bfloat16"}
    with open_llm(tiny_llama, enable_prefix_caching=False, **narrow) as llm:
        expected, _ = ask(llm, adapter)
    disk = {"kv_offloading_disk_path": str(tmp_path / "kv"), "kv_offloading_disk_size": 0.01}
    with open_llm(tiny_llama, **disk) as llm:
        assert ask(llm, adapter)[0] != expected
    with open_llm(tiny_llama, **disk, **narrow) as llm:
        assert ask(llm, adapter) == (expected, 0)
    with open_llm(tiny_llama, **disk, **narrow) as llm:
        rows, found = ask(llm, adapter)
        assert rows == expected and found > 16, "its own pages are"
