"""`kv_load_failure_policy: fail` with a disk, `file` and `shm`: a request whose pages were there and do not come ends with the
reason, once for each choice, and nothing of it is computed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import LLM, RequestOutput, SamplingParams
from core.kv import loads
from core_kv_connectors.tiers.disk import DiskTier
from tests.inside import core_of
from tests.kv.connector_rows import tiers_of

ROOM = {"max_model_len": 128, "max_num_seqs": 2, "num_gpu_blocks_override": 26, "dtype": "float32"}
PROMPT = [1, *(3 + index % 250 for index in range(96))]
OTHER = [1, *(3 + 7 * index % 250 for index in range(96))]
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=4, ignore_eos=True, n=2)
PLACES = {
    "disk": {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"disk_path": "{}"}},
    "file": {"kv_connector": "file", "kv_connector_extra_config": {"directory": "{}"}},
    "shm": {"kv_connector": "shm", "kv_connector_extra_config": {"directory": "{}"}},
}


def engine(model: Path, place: str, folder: Path, policy: str = "fail") -> LLM:
    given: dict[str, Any] = PLACES[place]
    own = {name: value.format(folder) for name, value in given["kv_connector_extra_config"].items()}
    transfer = {**given, "kv_connector_extra_config": own, "kv_load_failure_policy": policy}
    return LLM(model=str(model), use_tqdm_on_load=False, kv_transfer_config=transfer, **ROOM)


def answer(llm: LLM, prompt: list[int], **more: Any) -> RequestOutput:
    params = SamplingParams(**more) if more else PARAMS
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return output


def failed(output: RequestOutput, *why: str) -> None:
    ended = [one for one in output.outputs if one.finish_reason == "error"]
    assert output.outputs[0] in ended, "a later choice may find the page already gone, and is then computed"
    for one in ended:
        assert not one.token_ids
        for part in (*why, "kv_load_failure_policy fail"):
            assert part in str(one.stop_reason)


def saved(model: Path, place: str, folder: Path) -> list[list[int]]:
    """Have an engine leave the pages of both prompts; returns the answers to the first."""
    with engine(model, place, folder) as llm:
        whole = answer(llm, PROMPT)
        answer(llm, OTHER)
        core = core_of(llm)
        core.kv_services.save_idle(core.scheduler.kv, core.queue.copy)
        tiers = tiers_of(core.kv_services)
        tiers.save_all(core.scheduler.kv, core.queue.copy, 10.0)
        assert tiers.disk.flush()
        return [list(one.token_ids) for one in whole.outputs]


@pytest.fixture(params=list(PLACES))
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


def test_a_damaged_page_ends_the_request_and_others_go_on(place: str, tiny_llama: Path, tmp_path: Path) -> None:
    expected = saved(tiny_llama, place, tmp_path)
    with engine(tiny_llama, place, tmp_path) as llm:
        kv = core_of(llm).scheduler.kv
        disk = tiers_of(kv.connectors).disk
        for path in disk.directory.iterdir():
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        failed(answer(llm, PROMPT), f"could not be loaded from {disk_name(place)}", "a page is missing or damaged")
        scored = answer(llm, OTHER, max_tokens=1, prompt_logprobs=1)
        assert scored.outputs[0].finish_reason == "length", "its tokens are all computed, so that it needs no page"
        assert kv.usage == 0.0
        again = answer(llm, PROMPT)
        assert [list(one.token_ids) for one in again.outputs] == expected, "the damaged page is gone, so it is computed"
    with engine(tiny_llama, place, tmp_path, "recompute") as llm:
        for path in tmp_path.glob("*/*.kv"):
            path.write_bytes(b"no page")
        assert [list(one.token_ids) for one in answer(llm, PROMPT).outputs] == expected, "by default it is computed"


def disk_name(place: str) -> str:
    """What a session report, and the sentence, calls a place."""
    return {"disk": "disk", "file": "file", "shm": "file"}[place]


def test_a_page_that_does_not_come_in_time_ends_the_request(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tiny_llama, "file", tmp_path)
    go = threading.Event()
    real = DiskTier.read

    def read(disk: DiskTier, group: int, key: Any) -> Any:
        assert go.wait(60)
        return real(disk, group, key)

    monkeypatch.setattr(DiskTier, "read", read)
    monkeypatch.setattr(loads, "MAX_LOAD_S", 0.2)
    with engine(tiny_llama, "file", tmp_path) as llm:
        failed(answer(llm, PROMPT), "they were not read in time")
        go.set()


def test_a_prompt_that_the_place_does_not_have_is_computed(place: str, tiny_llama: Path, tmp_path: Path) -> None:
    with engine(tiny_llama, place, tmp_path) as llm:
        assert [len(one.token_ids) for one in answer(llm, PROMPT).outputs] == [4, 4]
