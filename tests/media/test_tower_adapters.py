"""Adapters that change towers and their connectors, beside peft, in all circumstances."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForImageTextToText

from core import LLM
from core.api.adapters import AdaptersConfig
from core.api.errors import ConfigError, UserError
from core_frontend.library.lora_request import LoRARequest
from core_media.families import FAMILIES
from core_media.serving.tower_adapters import TowerAdapters
from core_runtime.weights.adapter_contents import ModuleChange
from tests.media.checkpoints import SAVE, picture
from tests.media.comparison import GREEDY, Answer, Reference, assert_same, ours, prompt_of
from tests.media.test_default_adapters import SETTINGS, answer_of

TOWER = r".*(vision|visual|projector|merger).*(q_proj|qkv|attn\.proj|fc1|linear_1|linear_fc1)"
BOTH = rf"({TOWER}|.*language_model.*(q_proj|down_proj))"
TEXT = {"prompt": "abcd"}
WITH = {"enable_tower_connector_lora": True, **SETTINGS}


def save_adapter(base: Path, directory: Path, targets: str, seed: int, **more: Any) -> Path:
    """Write an adapter with random matrices, as peft does."""
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    made = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False, **more))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    made.save_pretrained(directory)
    return directory


def by_peft(llm: LLM, base: Path, adapter: Path, prompt: dict[str, Any]) -> Answer:
    reference = Reference(llm, base)
    reference._model = PeftModel.from_pretrained(reference._model, adapter).eval()
    return reference.answer(prompt["prompt"], prompt["multi_modal_data"]["image"])


def answers(llm: LLM, prompts: list[Any], adapters: list[LoRARequest | None]) -> list[Answer]:
    return [answer_of(each) for each in llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=adapters)]


@pytest.fixture(scope="module")
def folders(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    targets = {"both": BOTH, "tower": TOWER, "more": BOTH}
    return {name: save_adapter(llava, folder / name, each, seed) for seed, (name, each) in enumerate(targets.items())}


@pytest.fixture(scope="module")
def requests(folders: dict[str, Path]) -> dict[str, LoRARequest]:
    return {name: LoRARequest(name, number, str(folder)) for number, (name, folder) in enumerate(folders.items(), 1)}


@pytest.fixture(scope="module")
def llm(llava: Path) -> Iterator[LLM]:
    with LLM(model=str(llava), enable_sleep_mode=True, **WITH) as made:
        yield made


def test_towers_change_as_by_peft_in_company_in_caches_and_out_of_memory(
    llm: LLM, llava: Path, folders: dict[str, Path], requests: dict[str, LoRARequest]
) -> None:
    seen = prompt_of("ab<image>cd", [picture(1)])
    [base] = ours(llm, [seen])
    alone = {name: answers(llm, [seen], [request])[0] for name, request in requests.items()}
    for name, folder in folders.items():
        assert_same(alone[name], by_peft(llm, llava, folder, seen))
    assert len({str(each.logprobs) for each in (base, *alone.values())}) == 4
    [text] = ours(llm, [TEXT])
    # Two places for three adapters: some leave memory and are read again.
    names: list[str | None] = ["tower", None, "both", "more", None, "both", "tower", "more"]
    asked = [requests[name] if name else None for name in names]
    found = answers(llm, [seen, TEXT, *[seen] * 6], asked)
    assert found == [
        alone["tower"],
        text,
        alone["both"],
        alone["more"],
        base,
        alone["both"],
        alone["tower"],
        alone["more"],
    ]
    llm.sleep(1)
    llm.wake_up()
    assert answers(llm, [seen, seen], [requests["both"], None]) == [alone["both"], base]


@pytest.mark.media
@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl", "qwen3_vl"])
def test_towers_of_other_families_change_as_well(kind: str, tmp_path: Path) -> None:
    base = SAVE[kind](tmp_path / "base")
    folder = save_adapter(base, tmp_path / "adapter", BOTH, 1)
    prompt = prompt_of(f"ab{FAMILIES[kind]}cd{FAMILIES[kind]}e", [picture(1), picture(2, 90, 28)])
    with LLM(model=str(base), **WITH) as llm:
        [plain] = ours(llm, [prompt])
        [found, again] = answers(llm, [prompt, prompt], [LoRARequest("a", 1, str(folder))] * 2)
        assert found == again != plain
        assert_same(found, by_peft(llm, base, folder, prompt))


def test_what_a_tower_does_not_take_is_refused_by_name(llm: LLM, llava: Path, tmp_path: Path) -> None:
    dora = save_adapter(llava, tmp_path / "dora", TOWER, 1, use_dora=True)
    with pytest.raises(UserError, match="A and B alone"):
        answers(llm, [TEXT], [LoRARequest("dora", 9, str(dora))])
    large = save_adapter(llava, tmp_path / "large", TOWER, 1)
    with LLM(model=str(llava), max_lora_rank=2, **WITH) as small, pytest.raises(UserError, match="--max-lora-rank 2"):
        answers(small, [TEXT], [LoRARequest("large", 9, str(large))])
    with (
        LLM(model=str(llava), **SETTINGS) as without,
        pytest.raises(UserError, match="start with --enable-tower-connector-lora"),
    ):
        answers(without, [TEXT], [LoRARequest("large", 9, str(large))])
    with pytest.raises(ConfigError, match="--enable-tower-connector-lora: the model has 2 ranks"):
        LLM(model=str(llava), tensor_parallel_size=2, **WITH)


def test_changes_are_checked_against_the_tower() -> None:
    tower = TowerAdapters({"a": nn.Linear(4, 6), "b": nn.Conv2d(1, 1, 1)}, AdaptersConfig(target_modules=("a",)))
    small, large = torch.ones(2, 4), torch.ones(6, 2)
    assert tower.keep("x", "1", [ModuleChange("model.a", small, large)]).nbytes == 4 * 20
    assert len(tower.find("1")) == 1 and tower.find("2") == ()
    tower.drop("1")
    assert tower.find("1") == ()
    for change, sentence in (
        (ModuleChange("model.c", small, large), "no such module"),
        (ModuleChange("model.b", small, large), "a Conv2d"),
        (ModuleChange("model.a", weight=large), r"a Linear \(weight\)"),
        (ModuleChange("model.a", large.T, small.T), "expected"),
        (ModuleChange("model.a", torch.ones(17, 4), torch.ones(6, 17)), "--max-lora-rank 16"),
    ):
        with pytest.raises(UserError, match=sentence):
            tower.keep("x", "2", [change])
    with pytest.raises(UserError, match="--lora-target-modules"):
        TowerAdapters({"c": nn.Linear(4, 6)}, AdaptersConfig(target_modules=("a",))).keep(
            "x", "3", [ModuleChange("model.c", small, large)]
        )
