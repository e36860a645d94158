"""What a plugin constrains must exist: checked when its manifest is read, before anything is chosen."""

import pytest

from core.plugin.listing import listing
from core.plugin.manifest import ManifestError, load_manifest
from core.plugin.registry import PluginRegistry
from core_config.selection.reasons import constraint_problems


@pytest.mark.parametrize(
    "constraints, words",
    [
        ({"dtyp": ["bfloat16"]}, ["'dtyp'", "no engine argument", "Did you mean 'dtype'?"]),
        ({"swap_space": [4]}, ["'swap_space'", "no engine argument"]),
        ({"dtype": ["bfloat16", "bf16"]}, ["dtype to 'bf16'", "one of 'auto', 'bfloat16'"]),
        ({"block_size": [0]}, ["block_size to 0", "from 1 to 1024"]),
        ({"block_size": 16}, ["block_size to 16", "a list of allowed values"]),
        ({"dtype": []}, ["dtype to []", "a list of allowed values"]),
        ({"dtype": ["x"], "nothing": [1]}, ["dtype to 'x'", "'nothing'"]),
        (["dtype"], ["constraints are ['dtype']"]),
    ],
)
def test_impossible_constraints_break_the_manifest(make_plugin, constraints, words):
    row = make_plugin("loader", "odd", distribution="some-package", constraints=constraints)
    with pytest.raises(ManifestError) as caught:
        load_manifest(row)
    for word in [*words, "loader plugin 'odd'", "some-package 1"]:
        assert word in str(caught.value)
    (listed,) = listing(PluginRegistry([row]))
    assert listed.status == "broken" and words[0] in listed.reason


def test_possible_constraints_are_kept_and_checked_later(make_plugin):
    constraints = {"dtype": ["bfloat16"], "tensor_parallel_size": [1, 2], "enable_prefix_caching": [False]}
    spec = load_manifest(make_plugin("loader", "sound", constraints=constraints)).spec
    assert constraint_problems(spec, "loader", {"dtype": "bfloat16"}) == []
    (problem,) = constraint_problems(spec, "loader", {"dtype": "float32"})
    assert "--dtype float32" in problem and "allows only bfloat16" in problem
