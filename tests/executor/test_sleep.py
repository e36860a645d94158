"""An engine that slept goes on to the bit, and its memory was really given back."""

import gc
from pathlib import Path
from typing import Any

import pytest

from core.api.errors import RequestError, UtilityError
from core_frontend.llm import LLM
from tests.declared_models import DECLARED
from tests.declared_models import FAMILIES as ROUNDED
from tests.inside import core_of, worker_of
from tests.kv.conversations import INDEXED, MORE_STREAMS, checkpoint
from tests.new_weights import SETTINGS, answers, answers_of
from tests.tiny_models import save_checkpoint

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


def engine(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), enable_sleep_mode=True, **{**SETTINGS, **settings})


@pytest.mark.parametrize(
    ("level", "settings"),
    [
        (1, {"quantization": "mxfp4", "speculative_config": NGRAM}),
        pytest.param(2, {"quantization": "int8", "async_scheduling": True}, marks=pytest.mark.slow),
        pytest.param(1, {}, marks=pytest.mark.slow),
        pytest.param(2, {}, marks=pytest.mark.slow),
        pytest.param(1, {"model_impl": "transformers"}, marks=pytest.mark.slow),
        pytest.param(2, {"model_impl": "transformers"}, marks=pytest.mark.slow),
        pytest.param(1, {"kv_offloading_size": 0.01}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_wakes_with_the_same_bits(level: int, settings: dict[str, Any], tiny_llama: Path) -> None:
    with engine(tiny_llama, **settings) as llm:
        before = answers(llm)
        for _ in range(2):
            llm.sleep(level)
            assert llm.is_sleeping()
            llm.wake_up()
            assert not llm.is_sleeping()
            assert answers(llm) == before
        hits = llm.stats().prefix_hits
        llm.sleep(level)
        llm.wake_up()
        answers(llm)
        assert llm.stats().prefix_hits == hits, "what was cached went with the cache"


@pytest.mark.parametrize(
    "order", [["kv_cache", "weights"], pytest.param(["weights", "kv_cache"], marks=pytest.mark.slow)]
)
def test_parts_are_woken_in_any_order(order: list[str], tiny_llama: Path) -> None:
    with engine(tiny_llama) as llm:
        before = answers(llm)
        llm.sleep()
        for part in order:
            assert llm.is_sleeping()
            with pytest.raises(RequestError, match="The engine sleeps; call wake_up first"):
                answers(llm)
            llm.wake_up([part])
        assert answers(llm) == before


def test_weights_that_go_first_may_be_awake_without_a_cache(tiny_llama: Path, tmp_path: Path) -> None:
    """The usual order of a trainer: room for its own tensors, the weights, the new ones, and the cache at last."""
    newer = save_checkpoint(tmp_path / "newer", seed=11)
    with engine(tiny_llama) as llm:
        llm.sleep(2)
        llm.wake_up(["weights"])
        llm.update_weights(path=str(newer), frees_first=True)
        assert llm.is_sleeping()
        llm.sleep(2)
        llm.wake_up(["weights"])
        llm.wake_up(["kv_cache"])
        assert answers(llm) == answers_of(newer)


def test_a_wake_up_without_memory_for_the_cache_can_be_repeated(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(tiny_llama) as llm:
        before = answers(llm)
        worker = worker_of(llm)
        opened: list[object] = []
        open_device, steps, tries = worker.open_device, worker._step_runner, iter([True])

        def failing(instances: Any) -> Any:
            if next(tries, False):
                raise MemoryError("none is left")
            return steps(instances)

        monkeypatch.setattr(worker, "open_device", lambda: (opened.append(1), open_device()))
        monkeypatch.setattr(worker, "_step_runner", failing)
        llm.sleep()
        with pytest.raises(MemoryError):
            llm.wake_up()
        assert core_of(llm).call("lifecycle")["missing"] == ["kv_cache"]
        assert not hasattr(worker, "kv_memory")
        models = worker.instances
        llm.wake_up()
        assert answers(llm) == before
        assert worker.instances is models and len(opened) == 1, "neither device nor model is there twice"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"speculative_config": NGRAM}], ids=["plain", "drafts"])
@pytest.mark.parametrize("family", ["mixtral", "lfm2", *MORE_STREAMS, *INDEXED, *ROUNDED])
def test_other_families_too(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(family, tmp_path / family)
    declared = DECLARED if family in ROUNDED else {}
    with engine(path, **settings, **declared) as llm:
        before = answers(llm)
        for level in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert answers(llm) == before


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_new_weights_come_while_it_sleeps(level: int, tiny_llama: Path, tmp_path: Path) -> None:
    newer = save_checkpoint(tmp_path / "newer", seed=11)
    with engine(tiny_llama) as llm:
        answers(llm)
        llm.sleep(level)
        assert llm.update_weights(path=str(newer)) == "1"
        llm.wake_up(["weights"])
        assert llm.update_weights(path=str(newer), weight_version="again") == "again"
        llm.wake_up()
        assert answers(llm) == answers_of(newer)
        llm.sleep(level)
        llm.wake_up()
        assert answers(llm) == answers_of(newer)


def test_what_cannot_be_is_said(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), **SETTINGS) as llm:
        with pytest.raises(UtilityError, match="start it with --enable-sleep-mode"):
            llm.sleep()
        llm.wake_up()
    with engine(tiny_llama) as llm:
        with pytest.raises(UtilityError, match="sleep level is 3; expected 1 or 2"):
            llm.sleep(3)
        with pytest.raises(UtilityError, match=r"mode is 'kep'.*Did you mean 'keep'"):
            llm.sleep(mode="kep")  # type: ignore[arg-type]
        llm.sleep()
        with pytest.raises(UtilityError, match=r"tag 'weight' is unknown.*Did you mean 'weights'"):
            llm.wake_up(["weight"])
        with pytest.raises(RequestError, match="The engine sleeps"):
            llm.apply_model(print)


def resident(kind: str) -> int:
    """Bytes of this process's memory of a kind of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(kind)]
    return int(line.split()[1]) * 1024


def test_memory_of_the_embedded_model_is_given_back() -> None:
    with LLM(max_model_len=512, kv_cache_memory_bytes=128 << 20, enable_sleep_mode=True) as llm:
        before = answers(llm)
        worker = worker_of(llm)
        weights = worker.weights_nbytes
        touched = worker.kv_memory.of_layer(0).fill_(0).nbytes
        gc.collect()
        awake = resident("RssAnon")
        llm.sleep(1)
        asleep = resident("RssAnon")
        assert awake - asleep > 0.9 * (weights + touched)
        llm.wake_up()
        assert answers(llm) == before
        assert resident("RssAnon") - asleep > 0.5 * weights
