"""Engines that follow one another over the record that each leaves: deaths at a chosen moment, without processes."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from engine.sleeping import FakeReloader, SleepingExecutor
from fakes import EOS, composed, make_config, reference

from core.api.messages import EngineOutput, EngineRequest
from core.api.sampling_params import SamplingParams
from core.api.weights import MemoryPart, WeightSource
from core.engine.core import EngineCore
from core_supervision import persistent_flags as lasting
from core_supervision.engine_state import EngineState
from core_supervision.lifecycle_observer import LifecycleObserver
from core_supervision.link.anonymous_file import anonymous_file
from core_supervision.persistent_flags import PersistentFlags

NUM_TOKENS = 8


class Death(BaseException):
    """The process ends here: nothing that follows is written down."""


class MortalStorage:
    """A record's file until the engine dies. is_full: every write fails. fails_once: the next one does."""

    def __init__(self, file: int) -> None:
        self._file = PersistentFlags(file)
        self.is_dead = False
        self.is_full = False
        self.fails_once = False

    def write(self, state: EngineState) -> None:
        if self.is_full or self.fails_once:
            self.fails_once = False
            raise OSError(28, "No space left on device")
        if not self.is_dead:
            self._file.write(state)


class HookedReloader(FakeReloader):
    """Calls a hook in the middle of each change. hooks: by the method's name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.hooks: dict[str, Callable[[], None]] = {}

    def release(self, level: int) -> None:
        self._hook("release")
        super().release(level)

    def restore(self, parts: Sequence[MemoryPart]) -> None:
        self._hook("restore")
        super().restore(parts)

    def apply(self, sources: Sequence[WeightSource], version: str | None, *, frees_first: bool = False) -> None:
        self._hook("apply")
        super().apply(sources, version, frees_first=frees_first)
        self._hook("applied")

    def _hook(self, name: str) -> None:
        if name in self.hooks:
            self.hooks[name]()


class Lives:
    """One engine at a time; `die` begins the next. prepare: called with the reloader of each new engine before it begins."""

    def __init__(self, prepare: Callable[[HookedReloader], None] | None = None, **changes: Any) -> None:
        self._file = anonymous_file("test-lasting", 0)
        self._config = msgspec.structs.replace(make_config(), sleeps=True, **changes)
        self.prepare = prepare
        self.core = self._next()

    def close(self) -> None:
        os.close(self._file)

    def call(self, method: str, client: int = 0, **arguments: Any) -> Any:
        return self.core.call(method, arguments, client)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.core.call("lifecycle")
        return found

    def fatal(self) -> None:
        """Die at this moment: to be used as a hook."""
        self.storage.is_dead = True
        raise Death

    def die(self) -> None:
        self.core = self._next()

    def add(self, *names: str, num_tokens: int = NUM_TOKENS) -> None:
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        self.core.add(
            [EngineRequest(name, 0, prompt_of(name), params, 1, stop_token_ids=[EOS], handle=-1) for name in names]
        )

    def run(self, most: int = 200) -> dict[str, list[EngineOutput]]:
        """Compute until there is nothing to do; the outputs by request."""
        found: dict[str, list[EngineOutput]] = {}
        while self.core.has_work():
            most -= 1
            assert most > 0, "the engine does not come to an end"
            for output in self.core.step().outputs:
                found.setdefault(output.request_id, []).append(output)
            self.core.scheduler.check_integrity()
        return found

    def answers(self, name: str = "last") -> bool:
        """Whether a new request is answered, with the right tokens."""
        self.add(name)
        outputs = self.run().get(name, [])
        tokens = [token for output in outputs for token in output.token_ids]
        return tokens == reference(prompt_of(name), NUM_TOKENS)

    def _next(self) -> EngineCore:
        before = lasting.read(self._file)
        config = self._config if before is None else msgspec.structs.replace(self._config, weights=before.weights)
        executor = SleepingExecutor(config)
        self.reloader = executor.reloader = HookedReloader(config)
        if self.prepare is not None:
            self.prepare(self.reloader)
        self.storage = MortalStorage(self._file)
        lifecycle = LifecycleObserver(before, storage=self.storage, clock=lambda: 1.8e9)
        return composed(config, executor, lifecycle=lifecycle)


def prompt_of(name: str) -> list[int]:
    """Of a request."""
    return [*name.encode(), 5, 6, 7]
