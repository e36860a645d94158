"""A worker of the user's own in a whole engine: it computes the steps, and one that cannot be used is a sentence."""

from pathlib import Path
from typing import Any

import pytest

from core.api.errors import ConfigError, UserError
from core_config.resolve import resolve
from core_frontend.llm import LLM
from tests.executor import own_workers
from tests.inside import core_of, worker_of
from tests.new_weights import SETTINGS, answers

PATH = "tests.executor.own_workers"


def engine(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{**SETTINGS, **settings})


def test_it_computes_the_steps_and_has_an_id_of_its_own(tiny_llama: Path) -> None:
    with engine(tiny_llama, worker_cls="auto") as llm:
        expected, plain = answers(llm), core_of(llm).executor.numerics
    with engine(tiny_llama, worker_cls=f"{PATH}:Counting", enable_sleep_mode=True) as llm:
        worker = worker_of(llm)
        assert isinstance(worker, own_workers.Counting)
        assert answers(llm) == expected
        steps = worker.num_steps
        assert steps > 0
        name = core_of(llm).executor.numerics.removeprefix(plain)
        assert name.startswith("/Counting-") and len(name) == len("/Counting-") + 12
        llm.sleep(2)
        llm.wake_up()
        assert answers(llm) == expected and worker.num_steps > steps


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:Mine", "--worker-cls nowhere:Mine: nowhere cannot be imported: ModuleNotFoundError"),
        (f"{PATH}:Mine", "has no 'Mine'"),
        (f"{PATH}.NoWorker", "expected a subclass of core_runtime.executor.worker:Worker"),
        ("vllm", "expected module:Class"),
        (f"{PATH}:Fails", "no such device"),
        (f"{PATH}:Lacks", r"Lacks: execute: too many positional arguments; expected execute\(self, plan"),
        (f"{PATH}:Hides", r"Hides: close is no method; expected close\(self\)"),
    ],
)
def test_a_class_that_cannot_be_used_ends_the_start(name: str, words: str, tiny_llama: Path) -> None:
    with pytest.raises((UserError, ValueError), match=words):
        engine(tiny_llama, worker_cls=name)


@pytest.mark.slow
def test_each_rank_has_one(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    settings = {"tensor_parallel_size": 2, "kv_cache_memory_bytes": 8 << 20}
    with engine(tiny_llama, **settings) as llm:
        expected = answers(llm)
    with engine(tiny_llama, worker_cls=f"{PATH}:Counting", **settings) as llm:
        assert answers(llm) == expected
        assert "/Counting-" in core_of(llm).executor.numerics
    with pytest.raises(UserError, match="expected a subclass"):
        engine(tiny_llama, worker_cls=f"{PATH}:NoWorker", **settings)


def test_an_executor_without_such_a_worker_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    source = "from core.plugin.manifest_of import manifest_of\nKIND, CONTRACT = 'executor', 1\n"
    (tmp_path / "mine.py").write_text(source + "core_spec, core_load = manifest_of('mine', 'another', 'a.b:C')\n")
    given = {"model": str(tiny_llama), "plugins": str(tmp_path / "mine.py"), "worker_cls": "a:B", "executor": "mine"}
    with pytest.raises(
        ConfigError, match="--worker-cls: only the executors torch, mp and ray have such a worker, not mine"
    ):
        resolve(given, context="llm", environ={})
