"""A worker loads exactly what was chosen, or refuses with a sentence."""

from pathlib import Path

import msgspec
import pytest

from core.api.errors import PluginError
from core.plugin.discovery import discover
from core.plugin.hookspecs import LoadContext
from core.plugin.manifest import sha256_of
from core.plugin.table import PluginTable

PROPOSER = """
import msgspec
class Arguments(msgspec.Struct, frozen=True):
    words: int = 2
@hookimpl
def core_spec():
    return PluginSpec(name="mine", arguments=Arguments)
class Proposer:
    def __init__(self, arguments): self.arguments = arguments
    def on_start(self, key, token_ids): ...
    def propose(self, batch): return []
    def on_finished(self, key): ...
@hookimpl
def core_load(context):
    return Proposer(context.arguments)
"""


def hashed(row):
    path = Path(row.target.removeprefix("file:"))
    return msgspec.structs.replace(row, sha256=sha256_of(path)), path


def test_arguments_become_the_plugins_own_struct(make_plugin):
    row, _ = hashed(make_plugin("speculative", "mine", PROPOSER))
    table = PluginTable([row])
    assert table.load("speculative", "mine", LoadContext()).arguments.words == 2
    assert table.load("speculative", "mine", LoadContext(arguments={"words": 5})).arguments.words == 5
    with pytest.raises(PluginError, match="'words'"):
        table.load("speculative", "mine", LoadContext(arguments={"wrds": 5}))


def test_values_outside_the_choices_of_an_argument_name_the_choices(make_plugin):
    """A list of choices, with and without None; a type that is no list keeps its own words."""
    source = PROPOSER.replace(
        "words: int = 2", "words: Literal['few', 'many'] = 'few'\n    size: Literal[1, 2] | None = None"
    )
    source = source.replace("import msgspec", "import msgspec\nfrom typing import Literal")
    row, _ = hashed(make_plugin("speculative", "mine", source))
    for arguments, sentence in (
        ({"words": "manny"}, "speculative.mine.words 'manny': expected one of few, many. Did you mean 'many'?"),
        ({"size": 3}, "speculative.mine.size 3: expected one of 1, 2, none."),
    ):
        with pytest.raises(PluginError) as caught:
            PluginTable([row]).load("speculative", "mine", LoadContext(arguments=arguments))
        assert str(caught.value) == sentence
    row, _ = hashed(make_plugin("speculative", "mine", PROPOSER))
    with pytest.raises(PluginError, match=r"speculative\.mine\.words 'two': expected `int`"):
        PluginTable([row]).load("speculative", "mine", LoadContext(arguments={"words": "two"}))


def test_what_is_not_in_the_table_is_not_loaded(make_plugin):
    with pytest.raises(PluginError, match="not in the resolved table; it holds: loader a"):
        PluginTable([make_plugin("loader", "a")]).load("loader", "b", LoadContext())


def test_a_changed_file_is_refused(make_plugin):
    row, path = hashed(make_plugin("speculative", "mine", PROPOSER))
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(PluginError, match="has changed"):
        PluginTable([row]).load("speculative", "mine", LoadContext())
    path.unlink()
    with pytest.raises(PluginError, match="does not exist"):
        PluginTable([row]).load("speculative", "mine", LoadContext())


def test_another_version_is_refused():
    (row,) = [row for row in discover() if (row.kind, row.name) == ("speculative", "ngram")]
    assert PluginTable([row]).load("speculative", "ngram", LoadContext())
    for changes, words in [
        ({"version": "0.0.7"}, "core-engine-speculative 0.0.7"),
        ({"distribution": "gone"}, "nothing is installed"),
    ]:
        with pytest.raises(PluginError, match=words):
            PluginTable([msgspec.structs.replace(row, **changes)]).load("speculative", "ngram", LoadContext())


def test_an_object_without_the_contract_is_refused(make_plugin):
    row, _ = hashed(make_plugin("attention", "hollow"))
    with pytest.raises(PluginError, match=r"without name, numerics, kv_layout, bind.*AttentionBackend"):
        PluginTable([row]).load("attention", "hollow", LoadContext())


LATENT = """
class Backend:
    name = numerics = "flat"
    def kv_layout(self, spec, block_size, dtype): ...
    def bind(self, spec, block_size, dtype, raw): ...
    def build(self, view): ...
    def write_latent(self, handle, c, metadata): ...
@hookimpl
def core_spec():
    return PluginSpec(name="flat", capabilities={"layer_kinds": KINDS})
@hookimpl
def core_load(context):
    return Backend()
"""


@pytest.mark.parametrize(
    "kinds, code, words",
    [
        (["state"], LATENT, "without state_layout, bind_state, build_state, forward_state; see .*StateBackend"),
        (["latent"], LATENT, r"without forward_latent; see core_runtime.contracts.LatentBackend\."),
        (
            ["full", "latent"],
            LATENT,
            "without write, forward, forward_latent; see .*AttentionBackend and .*LatentBackend",
        ),
        (
            ["latent"],
            LATENT.replace("    def write", "    def forward_latent(self, *words): ...\n    def write"),
            r"write_latent\(handle, c, metadata\) cannot be called as write_latent\(handle, c, k_pe, metadata\)",
        ),
    ],
)
def test_a_backend_has_the_contracts_of_the_layers_that_it_declares(make_plugin, kinds, code, words):
    row, _ = hashed(make_plugin("attention", "flat", code.replace("KINDS", repr(kinds))))
    with pytest.raises(PluginError, match=words):
        PluginTable([row]).load("attention", "flat", LoadContext())
