"""How plugins are named on the command line, and where the hints about names lead."""

import pytest

from core.api.errors import ConfigError, UserError
from core.plugin.registry import PluginRegistry


@pytest.fixture
def rows(make_plugin):
    """Two packages, three kinds."""
    return [
        make_plugin("kernels", "fused", distribution="acme-core"),
        make_plugin("loader", "fused", distribution="acme-core"),
        make_plugin("loader", "plain", distribution="acme-core"),
        make_plugin("policy", "sjf", distribution="other"),
    ]


def blocked(rows, words):
    registry = PluginRegistry(rows, words)
    return {f"{row.kind}.{row.name}" for row in rows if registry.blocked(row)}


@pytest.mark.parametrize(
    "words, expected",
    [
        ("no:acme-core", {"kernels.fused", "loader.fused", "loader.plain"}),
        ("no:Acme_Core", {"kernels.fused", "loader.fused", "loader.plain"}),
        ("no:kernels.fused", {"kernels.fused"}),
        ("no:acme-core:fused", {"kernels.fused", "loader.fused"}),
        ("no:acme-core:loader.fused", {"loader.fused"}),
        ("loader.fused", {"loader.plain"}),
        ("plain", {"loader.fused"}),
        ("acme-core", set()),
        ("other,no:sjf", {"policy.sjf"}),
    ],
)
def test_a_word_names_a_plugin_its_kind_or_its_package_and_restricts_its_own_kinds_alone(rows, words, expected):
    assert blocked(rows, words) == expected


@pytest.mark.parametrize(
    "word, nearest", [("no:acme-cor", "acme-core"), ("kernels.fusd", "kernels.fused"), ("plian", "plain")]
)
def test_a_misspelled_word_names_the_nearest_of_its_sort(rows, word, nearest):
    with pytest.raises(ConfigError) as caught:
        PluginRegistry(rows, word)
    assert f"Did you mean '{nearest}'?" in caught.value.problems[0]


def test_the_hint_for_a_file_with_an_installed_name_leads_to_each_of_them(rows, make_plugin):
    rows[3] = make_plugin("policy", "sjf", distribution="core-engine")
    path = make_plugin("policy", "sjf").target.removeprefix("file:")
    registry = PluginRegistry(rows, path)
    with pytest.raises(UserError, match="offered by") as caught:
        registry.get("policy", "sjf")
    hints = [part.split(")")[0] for part in str(caught.value).split("(write ")[1:]]
    assert hints == ["core-engine:sjf", ":sjf"]
    found = [registry.get("policy", hint).row for hint in hints]
    assert [row.distribution for row in found] == ["core-engine", ""]
