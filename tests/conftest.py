"""Fixtures for the whole suite: tiny random checkpoints, made once a session."""

import gc
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from core.api.config import ResolvedPlugin
from core.own_packages import OWN
from core.plugin.distributions import is_own
from core.plugin.hookspecs import Probe
from core.plugin.registry import PluginRegistry
from core.plugin.rehearsal import Rehearsal
from tests.long_tests import every_of_functions, mark_long

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")  # on a busy machine no example is quick


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the engines of tests on a double of a device where they can"
    parser.addoption("--long", action="store_true", help="also run what tests/long.toml leaves out")
    parser.addoption("--fake-device", choices=("gpu", "offload", "graph", "late"), help=text)
    parser.addoption(
        "--on-device", help="make the tensors of tests of kernels on this device: cuda, or cpu to rehearse"
    )


def pytest_configure(config: pytest.Config) -> None:
    on_device = config.getoption("--on-device")
    # Triton decides when it is imported whether it interprets kernels, and no conftest imports it.
    if config.getoption("markexpr") == "gpu" or on_device not in (None, "cpu"):
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    if on_device is not None:
        from tests.on_device import use_device

        use_device(on_device)
    kind = config.getoption("--fake-device")
    if kind is not None:
        from tests.fake_engines import use_doubles

        use_doubles(kind)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long") or any("::" in argument for argument in config.args):
        return  # a test that somebody names is run
    expression = next(option for option in config.getini("addopts") if option.startswith("not "))
    others = set(expression.removeprefix("not ").split(" and not ")) - {"long"}
    mark_long(items, every_of_functions(), others)


def pytest_collection_finish() -> None:
    """Modules and collected tests stay until the end; collecting garbage at each engine's start need not see them."""
    gc.collect()
    gc.freeze()
    # Engines in this process freeze nothing, so that none of them has to look through what is frozen here: 1 s each time.
    gc.get_freeze_count = lambda: 0
    if "torch" in sys.modules:
        # Oracles multiply tiny matrices, for which threads wait for each other much longer than they compute.
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def imported_modules_are_frozen() -> Iterator[None]:
    """What a test file imports stays too: without this, a full collection at an engine's start takes 0.1 s, a third of it.

    Not after each test: what the file's own fixtures hold would be frozen as well, and never collected.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def loggers_are_left_as_they_were() -> Iterator[None]:
    """A command that is run in the tests' own process sets up logging; what the next files log would be kept or lost."""
    loggers = [logging.getLogger(name) for name in OWN]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.fixture(autouse=True, scope="session")
def our_platforms_are_probed_once() -> Iterator[None]:
    """A start asks a process of its own which devices there are, 0.2 s each time; in this process nothing of it changes."""
    known: dict[tuple[Any, ...], Probe] = {}
    start = PluginRegistry._start_probes
    finish = PluginRegistry._finish_probes

    def key(row: ResolvedPlugin) -> tuple[Any, ...]:
        variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return (row, *sys.path, *sorted(variables.items()))

    def start_unknown(self: PluginRegistry, rows: Sequence[ResolvedPlugin] | None = None) -> Rehearsal:
        for row in self.rows("platform") if rows is None else rows:
            if row not in self._probes and not self.blocked(row) and key(row) in known:
                self.take_answer(row, known[key(row)])
        return start(self, rows)

    def finish_and_keep(self: PluginRegistry, started: Rehearsal) -> None:
        finish(self, started)
        for part in started.task.parts:
            found = self._probes[part.row]
            if is_own(part.row.distribution) and isinstance(found, Probe):
                known[key(part.row)] = found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PluginRegistry, "_start_probes", start_unknown)
        patch.setattr(PluginRegistry, "_finish_probes", finish_and_keep)
        yield


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama checkpoint of random weights, with a byte tokenizer and a chat template."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the gemma3 family, with sliding windows of 24 tokens."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_gemma3"), family="gemma3")


@pytest.fixture(scope="session")
def tiny_lfm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the lfm2 family: three short convolutions and one layer with full attention."""
    from tests.tiny_models import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("tiny_lfm2"), family="lfm2")
