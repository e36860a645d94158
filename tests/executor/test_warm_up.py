"""Kernels that are compiled: an engine begins with it before its weights are loaded, and is ready when it is done."""

from pathlib import Path

import pytest

from core import LLM
from core.api.errors import UserError
from core_runtime.contracts import WarmsUp
from core_runtime.executor import warm_up
from core_runtime.models.tensors.loading import WeightLoading
from tests.inside import core_of


class Provider:
    """One that writes down what it is asked. refusal: of a kernel that cannot be compiled."""

    late = 0

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.events: list[str] = []
        self.configs: list[str] = []

    def warm_up(self, run, config):
        assert run == "core_runtime.executor.warm_up:run_steps"
        self.configs.append(config)
        self.events.append("begin")
        return self

    def finish(self):
        self.events.append("finish")
        if self.refusal:
            raise UserError(self.refusal)

    def stop(self):
        self.events.append("stop")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tiny_llama: Path):
    def start(provider: Provider, **arguments: object) -> LLM:
        load = WeightLoading.run

        def loading(*words, **options):
            provider.events.append("weights")
            return load(*words, **options)

        monkeypatch.setattr(warm_up, "compiling", lambda kernels: [provider])
        monkeypatch.setattr(WeightLoading, "run", loading)
        return LLM(model=str(tiny_llama), max_model_len=64, **arguments)

    return start


def test_weights_are_loaded_meanwhile_and_the_engine_is_ready_afterwards(started) -> None:
    provider, other, alike = Provider(), Provider(), Provider()
    with started(provider) as llm:
        assert provider.events == ["begin", "weights", "finish"]
        assert "compile kernels" in dict(core_of(llm).executor.phases)
    with started(other, max_num_seqs=3), started(alike):
        assert provider.configs == alike.configs != other.configs
    assert isinstance(provider, WarmsUp)


def test_a_kernel_that_cannot_be_compiled_ends_the_start(started) -> None:
    provider = Provider("1 of 2 kernels cannot be compiled")
    with pytest.raises(UserError, match="1 of 2 kernels cannot be compiled"):
        started(provider)
    assert provider.events == ["begin", "weights", "finish", "stop"]
