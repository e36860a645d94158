"""The plan of the memory of adapters, against what they take."""

import json

import pytest

from core import LLM
from core.commands.main import main
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.drawn import shapes_of, write_adapter
from tests.inside import worker_of
from tests.real_models import smollm2_path

LORA = ("--enable-lora", "--max-loras", "2", "--max-cpu-loras", "3", "--max-lora-rank", "24")


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_adapters_take_what_is_planned_and_only_those_in_memory(tmp_path, capsys, dtype):
    path = smollm2_path()
    words = ("config", "explain", str(path), *LORA, "--lora-dtype", dtype, "--json")
    assert main(list(words)) == 0
    planned = json.loads(capsys.readouterr().out)["memory"]
    assert planned["num_adapters"] == 3
    shapes = shapes_of(str(path))
    llm = LLM(
        model=str(path), enable_lora=True, max_loras=2, max_cpu_loras=3, max_lora_rank=24, lora_dtype=dtype,
        max_model_len=64, max_num_seqs=2, kv_cache_memory_bytes=1 << 22, use_tqdm_on_load=False,
    )  # fmt: skip
    try:
        for number in range(1, 5):
            folder = write_adapter(tmp_path / str(number), shapes, 24, seed=number)
            llm.add_lora(LoRARequest(str(number), number, str(folder)))
            placed = worker_of(llm).adapters
            taken = sum(placed.find(digest).facts.nbytes for digest in placed.rows)
            assert taken == pytest.approx(min(number, 3) * planned["adapter_bytes"], rel=0.01), "one made room"
    finally:
        llm.close()


def test_without_adapters_no_memory_is_planned(capsys):
    assert main(["config", "explain", str(smollm2_path())]) == 0
    assert "adapters " not in capsys.readouterr().out.partition("Memory")[2]
