"""The state canary: flipped bits are found by class before requests are taken, clean starts raise no alarm."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from core import LLM
from core.api.errors import UserError
from core.kv.hashing import PrefixKey
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_file import PageError, page_parts, read_page
from core_observers.engine import canary
from core_observers.engine.canary import Canary, StateError
from core_runtime.executor.canary import State
from tests.inside import core_of


def open_llm(path: Path, records: Path | None, **settings: object) -> LLM:
    directory = None if records is None else str(records)
    return LLM(model=str(path), max_model_len=128, max_num_seqs=2, state_canary=directory, **settings)


def state_of(llm: LLM) -> State:
    return core_of(llm).executor.state


def check(llm: LLM) -> None:
    """What a start does before requests are taken."""
    engine = core_of(llm)
    Canary.open(engine.config, engine.executor).check(engine.compute, engine.config)


def flip(generator: random.Random, state: State, name: str):
    """Flip one bit of a part, and return what flips it back."""
    memory = state.tensors[name].view(-1).view(torch.uint8).numpy()
    place, bit = generator.randrange(len(memory)), generator.randrange(8)

    def turn() -> None:
        memory[place] ^= np.uint8(1 << bit)

    turn()
    return turn


def kind_of(name: str) -> str:
    if "_tables" in name:
        return "tables"
    return "norms" if "norm" in name else "matrices"


@pytest.fixture
def llm(tiny_llama: Path, tmp_path: Path):
    opened = open_llm(tiny_llama, tmp_path / "records")
    yield opened
    opened.close()


@pytest.mark.parametrize("family", ["tiny_llama", pytest.param("tiny_lfm2", marks=pytest.mark.slow)])
def test_the_state_is_all_of_the_weights_and_never_changes(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    llm = open_llm(request.getfixturevalue(family), tmp_path)
    state = state_of(llm)
    weights = core_of(llm).executor.worker.weights_nbytes
    held = sum(tensor.nbytes for name, tensor in state.tensors.items() if kind_of(name) == "matrices")
    assert weights <= held < weights + 4096 * len(state.names)
    before = {name: list(state.checksum(name))[-1] for name in state.names}
    llm.generate(["abc", "a longer one"], use_tqdm=False)
    assert {name: list(state.checksum(name))[-1] for name in state.names} == before
    llm.close()


def test_the_next_start_agrees_with_the_record(tiny_llama: Path, tmp_path: Path) -> None:
    texts = []
    for directory in (None, tmp_path, tmp_path):
        llm = open_llm(tiny_llama, directory)
        texts.append(llm.generate("abc", use_tqdm=False)[0].outputs[0].token_ids)
        llm.close()
    assert texts[0] == texts[1] == texts[2]
    (record,) = tmp_path.glob("*.json")
    assert record.stat().st_mode & 0o777 == 0o600
    assert len(json.loads(record.read_text())["tokens"]) == canary.NEW_TOKENS
    longer = LLM(model=str(tiny_llama), max_model_len=64, state_canary=str(tmp_path))
    longer.close()
    assert len(list(tmp_path.glob("*.json"))) == 2  # other tables: another record


def test_flipped_bits_of_every_kind_are_found_and_clean_checks_raise_nothing(llm: LLM) -> None:
    found, injected = flips_found(llm, 24, seed=1)
    assert found == injected and set(injected) == {"matrices", "norms", "tables"}
    for _ in range(10):
        check(llm)


def flips_found(llm: LLM, number: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    generator = random.Random(seed)
    state = state_of(llm)
    found: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    by_kind: dict[str, list[str]] = {}
    for name in state.names:
        by_kind.setdefault(kind_of(name), []).append(name)
    for index in range(number):
        kind = sorted(by_kind)[index % len(by_kind)]
        name = generator.choice(by_kind[kind])
        turn_back = flip(generator, state, name)
        injected[kind] += 1
        try:
            check(llm)
        except StateError as error:
            found[kind] += name in str(error)
        turn_back()
    return found, injected


def test_a_probe_that_answers_differently_is_found_where_the_weights_agree(llm: LLM, tmp_path: Path) -> None:
    (path,) = (tmp_path / "records").glob("*.json")
    record = json.loads(path.read_text())
    for field, changed in (("tokens", [1, *record["tokens"][1:]]), ("logprobs", ["0x1p+0", *record["logprobs"][1:]])):
        path.write_text(json.dumps(record | {field: changed}))
        words = "tokens" if field == "tokens" else "log-probabilities"
        with pytest.raises(StateError, match=f"the probe's {words} differ.*remove that file"):
            check(llm)


def test_a_damaged_start_ends_and_takes_no_request(tiny_llama: Path, tmp_path: Path) -> None:
    open_llm(tiny_llama, tmp_path).close()
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    name = sorted(record["checksums"])[0]
    record["checksums"][name] = "0" * 32
    path.write_text(json.dumps(record))
    with pytest.raises(StateError, match=rf"1 of \d+ parts of the weights differ \({name}\)"):
        open_llm(tiny_llama, tmp_path)
    path.write_text("{")
    with pytest.raises(UserError, match=r"is no record.*Remove it"):
        open_llm(tiny_llama, tmp_path)
    with pytest.raises(UserError, match="Name a directory that this user may write to"):
        open_llm(tiny_llama, path)


def test_large_weights_are_compared_in_idle_time(tiny_llama: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(canary, "START_BYTES", 0)
    first = open_llm(tiny_llama, tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["checksums"] == {}
    while core_of(first).idle() is not None:
        pass
    assert len(json.loads(path.read_text())["checksums"]) == len(state_of(first).names)
    first.close()
    second = open_llm(tiny_llama, tmp_path)
    flip(random.Random(0), state_of(second), state_of(second).names[-1])
    with pytest.raises(StateError, match="1 of"):
        while core_of(second).idle() is not None:
            pass
    second.close()


def test_pages_that_change_in_host_memory_or_on_disk_are_computed_again(tmp_path: Path) -> None:
    generator = random.Random(2)
    tier = HostTier(1 << 20, checked=True)
    for number in range(40):
        key = PrefixKey(number.to_bytes(32, "little"), b"tokens")
        page = np.frombuffer(generator.randbytes(2048), np.uint8).copy()
        tier.write(0, key, page)
        assert tier.read(0, key) is page
        path = tmp_path / "page"
        parts = page_parts("f" * 32, 0, key, page)
        path.write_bytes(b"".join(bytes(part) for part in parts))
        page[generator.randrange(2048)] ^= np.uint8(1 << generator.randrange(8))
        assert tier.read(0, key) is None and not tier.contains(0, key)
        content = bytearray(path.read_bytes())
        content[generator.randrange(len(content) - 2048, len(content))] ^= 1 << generator.randrange(8)
        path.write_bytes(content)
        with path.open("rb") as file, pytest.raises(PageError, match="checksum"):
            read_page(file, "f" * 32, 0, key, 2048)
    tier.check_integrity()


@pytest.mark.slow
def test_two_hundred_flips_and_a_thousand_clean_checks(llm: LLM) -> None:
    found, injected = flips_found(llm, 200, seed=3)
    assert found == injected and sum(injected.values()) == 200
    for _ in range(1000):
        check(llm)
