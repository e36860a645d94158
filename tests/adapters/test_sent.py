"""Adapters whose tensors come from shared memory: the same adapter as its files, and just as lasting."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file

from core import SamplingParams, SharedTensors
from core.api.errors import RequestError
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import save_adapter
from tests.inside import core_of, digest_of

PROMPT = [1, 40, 77, 90, 12, 5, 9, 33, 2, 8, 61, 7, 3, 11, 19, 23, 4]
ASKED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
NAME = Path("sent")
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [save_adapter(tiny_llama, folder / str(seed), seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def made(tiny_llama: Path) -> Iterator[AdapterEngine]:
    settings = {"enable_sleep_mode": True, "enable_prefix_caching": True, "block_size": 16}
    with engine(tiny_llama, {"max_lora_rank": 8, "max_loras": 1, "max_cpu_loras": 1}, **settings) as one:
        yield one


def configuration(adapter: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text())
    return found


def tensors_of(adapter: Path) -> dict[str, torch.Tensor]:
    return load_file(adapter / "adapter_model.safetensors")


def send(made: AdapterEngine, adapter: Path, *, load_inplace: bool = False) -> str:
    with SharedTensors(tensors_of(adapter)) as shared:
        request = shared.adapter("sent", configuration(adapter), load_inplace=load_inplace)
        made.digests[NAME] = digest_of(made.llm, request)
    return made.digests[NAME]


def answer(made: AdapterEngine, adapter: Path | None = NAME) -> tuple[list[int], list[dict[int, float]]]:
    return bits_of(made.run([(PROMPT, adapter)], ASKED)[0])


def kept_bytes(made: AdapterEngine) -> int:
    """Memory of all adapters that were sent."""
    [observer] = [one for one in core_of(made.llm).observers if hasattr(one, "holder")]
    file = observer.holder.sent.file
    return 0 if file is None else os.fstat(file).st_blocks * 512


def test_it_is_the_adapter_of_its_files_and_outlives_what_takes_its_memory(
    made: AdapterEngine, tiny_llama: Path, adapters: list[Path]
) -> None:
    first, second = adapters
    made.load(first)
    expected = answer(made, first)
    made.drop(first)
    assert send(made, first) == made.digests[first], "configuration and tensors are its identity, not where they lay"
    assert answer(made) == expected != answer(made, None)

    made.load(second)  # there is room for one, so that the sent one has to be read again
    assert answer(made, second) != expected
    assert answer(made) == expected
    made.drop(second)

    for level in (1, 2):
        made.llm.sleep(level=level)
        made.llm.wake_up()
        assert answer(made) == expected
    made.llm.update_weights(path=str(tiny_llama))
    assert answer(made) == expected
    made.drop(NAME)
    answer(made, None)
    assert not kept_bytes(made)


def test_in_place_it_is_another_one_which_never_hits_the_cache_of_the_one_before(
    made: AdapterEngine, adapters: list[Path]
) -> None:
    first, second = adapters
    made.load(second)
    expected = answer(made, second)
    made.drop(second)
    send(made, first)
    before = answer(made)
    size = kept_bytes(made)
    with SharedTensors(tensors_of(second)) as shared:
        other = shared.adapter("sent", configuration(second))
        with pytest.raises(RequestError, match=r"the name stands for the adapter of .*load_inplace=True"):
            made.llm.generate("a", ASKED, lora_request=other, use_tqdm=False)
    assert answer(made) == before
    send(made, second, load_inplace=True)
    assert answer(made) == expected != before
    assert 0 < kept_bytes(made) <= size, "the memory of the one before is free"
    made.drop(NAME)


def test_requests_take_it_as_peft_has_it(made: AdapterEngine, adapters: list[Path]) -> None:
    found = configuration(adapters[0])
    config = LoraConfig(
        r=found["r"], lora_alpha=found["lora_alpha"], target_modules=found["target_modules"], task_type="CAUSAL_LM"
    )
    with SharedTensors(tensors_of(adapters[0])) as shared:
        request = shared.adapter("sent", config, 7)
        [one] = made.llm.generate("abc", ASKED, lora_request=request, use_tqdm=False)
    [again] = made.llm.generate("abc", ASKED, lora_request=request, use_tqdm=False)  # the memory is gone
    assert bits_of(one) == bits_of(again)
    [files] = made.llm.generate("abc", ASKED, lora_request=LoRARequest("f", 8, str(adapters[0])), use_tqdm=False)
    assert bits_of(files) == bits_of(one)
    assert made.llm.list_loras() == {7, 8} and made.llm.remove_lora(7) and made.llm.remove_lora(8)


def place(**values: Any) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described["tensors"][0] |= values

    return change


def field(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda described: described.update(values)


def setting(**values: Any) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described["configuration"] = json.dumps(json.loads(described["configuration"]) | values)

    return change


def twice(described: dict[str, Any]) -> None:
    described["tensors"].append(described["tensors"][0])


def many(described: dict[str, Any]) -> None:
    [first, *_] = described["tensors"]
    described["tensors"] = [first | {"name": f"{number}"} for number in range(100)]


BAD: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (field(shared_memory="core-absent"), "shared memory core-absent: cannot be read"),
    (field(shared_memory="../etc/passwd"), "is no name of shared memory"),
    (field(shared_memory=""), "not described as expected.*shared_memory"),
    (field(more=1), "not described as expected.*more"),
    (place(offset=1 << 40), "ends at byte"),
    (place(shape=[1 << 50] * 8), "ends at byte"),
    (place(dtype="int32"), "has type int32, expected one of F64, F32, F16, BF16"),
    (place(name=FIRST.replace("q_proj", "qq_proj")), "qq_proj, but target_modules does not name it"),
    (place(shape=[4, 8]), "A and B of .* have the shapes|has 4 rows|inputs"),
    (twice, "is named twice"),
    (many, "the tensors overlap"),
    (field(tensors=[]), "there is no tensor|changes no module"),
    (
        field(configuration="[]"),
        "the configuration of the adapter that was sent: holds a JSON list, expected an object",
    ),
    (field(configuration="{"), "the configuration of the adapter that was sent: is not valid JSON"),
    (field(configuration=" " * (1 << 20) + "{}"), "not described as expected.*configuration"),
    (setting(use_qalora=True), "the adapter that was sent: use_qalora is not served"),
    (setting(r=4), "its rank is 4"),
]


def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(made: AdapterEngine, adapters: list[Path]) -> None:
    send(made, adapters[0])
    before, size = answer(made), kept_bytes(made)
    with SharedTensors(tensors_of(adapters[1])) as shared:
        for change, words in BAD:
            request = shared.adapter("sent", configuration(adapters[1]), load_inplace=True)
            assert request.shared is not None
            change(request.shared.described)
            with pytest.raises(RequestError, match=words) as error:
                made.llm.add_lora(request)
            assert "\n" not in str(error.value)
            assert kept_bytes(made) == size, words
    assert answer(made) == before
    made.drop(NAME)


@pytest.mark.parametrize("sent", [False, True], ids=["a file", "shared memory"])
def test_zeros_that_no_memory_holds_are_refused(
    made: AdapterEngine, adapters: list[Path], tmp_path: Path, sent: bool
) -> None:
    """A file may claim more than the machine has, and take no place."""
    length = 1 << 36
    if not sent:
        folder = tmp_path / "large"
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(configuration(adapters[0])))
        header = json.dumps({FIRST: {"dtype": "F32", "shape": [length], "data_offsets": [0, 4 * length]}}).encode()
        with (folder / "adapter_model.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            os.truncate(file.fileno(), 8 + len(header) + 4 * length)
        with pytest.raises(RequestError, match=r"has 274\.9 GB, whose reading takes 3 times as much"):
            made.llm.add_lora(LoRARequest("large", 9, str(folder)))
        return
    with SharedTensors(tensors_of(adapters[0])) as shared:
        os.truncate(f"/dev/shm/{shared.name}", 8 * length)
        request = shared.adapter("large", configuration(adapters[0]))
        assert request.shared is not None
        place(shape=[length], offset=0)(request.shared.described)
        with pytest.raises(RequestError, match=r"GB, whose reading takes 3 times as much"):
            made.llm.add_lora(request)
    assert not kept_bytes(made)


def test_numbers_that_are_not_finite_are_refused(made: AdapterEngine, adapters: list[Path]) -> None:
    tensors = tensors_of(adapters[0])
    tensors[FIRST][0, 0] = torch.inf
    with SharedTensors(tensors) as shared, pytest.raises(RequestError, match="not finite"):
        made.llm.add_lora(shared.adapter("bad", configuration(adapters[0])))
    with SharedTensors(tensors) as shared, pytest.raises(RequestError, match="cannot be written as JSON"):
        shared.adapter("bad", {"r": object()})
