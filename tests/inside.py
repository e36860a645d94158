"""The parts of an engine that tests look into: one place that knows where `LLM` and the scheduler have them."""

from collections.abc import Sequence
from typing import Any

from core import LLM, RequestOutput, SamplingParams
from core.engine.core import EngineCore
from core.scheduler.scheduler import Scheduler
from core_frontend.batch_run import run_batch
from core_supervision.link.inproc import InprocClient


def client_of(llm: Any) -> InprocClient:
    return llm._live_client()


def core_of(llm: Any) -> EngineCore:
    return client_of(llm).core


def worker_of(llm: Any) -> Any:
    return client_of(llm).worker


def state_of(scheduler: Scheduler) -> Any:
    """The queues and sequences, which a test harms as a defect would."""
    return scheduler._state


def with_grammar(llm: LLM, name: str, prompt: str, params: SamplingParams, grammar: Any) -> Any:
    """A processed request whose grammar is compiled already, or has none."""
    return llm._input.process(name, prompt, params, grammar=grammar)


def run_entries(llm: LLM, entries: Sequence[Any]) -> list[RequestOutput]:
    return run_batch(client_of(llm), llm._output, entries, False)


def digest_of(llm: Any, adapter: Any) -> str:
    """The digest of an adapter, which is loaded if it is not."""
    return llm._adapter(adapter).digest


def unload(llm: Any, name: str) -> None:
    """Unload an adapter by its name."""
    llm._call_engine("unload_adapter", name=name)
