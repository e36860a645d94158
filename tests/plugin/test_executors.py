"""The engine takes its executor from the table of plugins, and says whose fault it is when that one cannot be built."""

import sys
import textwrap

import msgspec
import pytest

from core.api.config import EngineConfig
from core.api.errors import PluginError, UserError
from core.engine import executors
from core.engine.executors import build_executor, import_executor
from core.plugin.registry import PluginRegistry
from core_supervision.link.inproc import InprocClient
from tests.engine.fakes import TARGET, make_config

MAKER = """
@hookimpl
def core_load(context):
    return Maker()
class Whole:
    num_blocks, page_bytes, numerics, phases = 64, 64, "whole", []
    def execute(self, plan): ...
    def close(self): self.closed = True
"""


@pytest.fixture
def configured(make_plugin):
    """configured(body of a manifest) -> a configuration that chose the executor in it."""

    def configure(body: str) -> EngineConfig:
        row = make_plugin("executor", "own", MAKER + textwrap.dedent(body))
        config = make_config()
        plugins = config.plugins
        chosen = msgspec.structs.replace(plugins, executor="own", table=(*plugins.table, row))
        return msgspec.structs.replace(config, plugins=chosen)

    return configure


def test_the_chosen_executor_is_built(configured):
    config = configured("class Maker:\n    def build(self, config): return Whole()")
    assert build_executor(config).numerics == "whole"
    client = InprocClient(config)
    assert client.core.executor.numerics == "whole"
    client.close()
    assert client.core.executor.closed


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("Maker = object", r"core_load answered a object without build; see core\.engine\.executor\.ExecutorMaker\."),
        ("class Maker:\n    def build(self): ...", r"build\(\) cannot be called as build\(config\)"),
        (
            "class Maker:\n    def build(self, config): return 1",
            r"build answered a int without num_blocks, page_bytes, numerics, phases, execute, close; see core\.engine",
        ),
    ],
)
def test_another_object_is_refused_with_what_it_lacks(configured, body, words):
    with pytest.raises(PluginError, match=words) as caught:
        build_executor(configured(body))
    assert caught.value.plugin.name == "own"


def test_a_refusal_of_the_configuration_stays_the_users(configured):
    body = (
        "from core.api.errors import UserError\nclass Maker:\n    def build(self, config): raise UserError('no room')"
    )
    with pytest.raises(UserError, match=r"^no room$"):
        build_executor(configured(body))


def test_a_failure_names_the_plugin(configured, install):
    body = "class Maker:\n    def build(self, config): raise ValueError('out of luck')\n"
    spec = "@hookimpl\ndef core_spec():\n    return PluginSpec(name='own')\n"
    (row,) = install("core-luckless", "1.0", {"core.executors": {"own": spec + MAKER + body}})
    plugins = msgspec.structs.replace(configured(body).plugins, table=(row,))
    with pytest.raises(
        PluginError, match=r"'own' \(core-luckless 1\.0\): Maker\.build failed: ValueError: out of luck"
    ) as caught:
        build_executor(msgspec.structs.replace(make_config(), plugins=plugins))
    assert caught.value.plugin == row


def test_a_configuration_without_an_executor_says_so():
    config = make_config()
    none = msgspec.structs.replace(config.plugins, executor="", table=())
    with pytest.raises(PluginError, match="executor plugin '' is not in the resolved table; it holds: none"):
        build_executor(msgspec.structs.replace(config, plugins=none))


def test_a_class_that_is_no_plugin_is_imported_by_its_path():
    factory, seconds = import_executor(f"tests.engine.{TARGET}")
    assert factory(make_config()).numerics == "fake"
    assert seconds >= 0.0


def test_the_engines_own_is_imported_early_and_its_failure_waits_for_the_choice(make_plugin, monkeypatch):
    broken = make_plugin("executor", "broken", "@hookimpl\ndef core_load(context):\n    raise ImportError('no driver')")
    asked = []
    monkeypatch.setattr(executors, "own_row", lambda kind: asked.append(kind) or broken)
    factory, _ = import_executor(None)
    assert factory is build_executor
    assert asked == ["executor"]


def test_the_usual_executor_is_one_of_the_engines_own():
    own = {row.name: row for row in PluginRegistry().rows("executor") if PluginRegistry().own(row)}
    assert set(own) == {"torch", "mp", "ray"}
    assert "torch" not in own["torch"].target.split(".")
    assert sys.modules["core.engine.executors"].own_row("executor") == own["torch"]
