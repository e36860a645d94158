"""The schema is sound, and help shows all of it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from core.api.errors import PluginError, UserError
from core.args import schema as schema_module
from core.args.plugin_arguments import convert_struct
from core.args.schema import Schema, schema
from core.args.show import render
from core.entry_points import Offer
from core_config.arguments.convert import convert
from core_config.arguments.help import COMMON, argument_sections, sections_about


def test_every_default_is_a_valid_value():
    for field in schema().fields.values():
        if field.default is not None or field.optional:
            assert convert(field, field.default) == field.default, field.name


def test_no_spelling_means_two_arguments():
    flags = [flag for field in schema().fields.values() for flag in field.flags]
    assert len(flags) == len(set(flags))
    assert all(flag.count("-") for flag in flags)


def test_help_names_every_flag_and_fits_the_width():
    text = render("core serve", "intro", argument_sections(), 100)
    for field in schema().fields.values():
        assert field.flag in text
    assert max(len(line) for line in text.splitlines() if not line.strip().startswith("-")) <= 100


def test_the_common_arguments_come_first_and_once():
    first, *others = argument_sections()
    assert [row[0].split()[0].rstrip(",") for row in first.rows] == [schema().fields[name].flag for name in COMMON]
    shown = [row[0] for section in (first, *others) for row in section.rows]
    assert len(shown) == len(set(shown)) == len(schema().fields)
    assert 20 <= len(first.rows) <= 30


def test_help_can_be_narrowed():
    def names(word):
        return [row[0] for section in sections_about(word) for row in section.rows]

    assert names("cache")[0].split()[0] == "--block-size"
    assert names("port")[0] == "--port N"
    assert names("CacheConfig") == names("cache") and names("SchedulerConfig") == names("scheduler")
    assert names("-pcp") == ["--prefill-context-parallel-size, -pcp"]
    assert "--compilation-config.mode N" in names("compilation-config")
    assert "--compilation-config.pass_config" in names("compilation-config")
    assert "--kv-events-config.hwm N" in names("kv-events-config")
    assert "--max-loras N" in names("LoRAConfig") and "--mm-encoder-only" in names("multimodal")
    assert "--mm-processor-cache-gb X" in names("media")
    assert names("swap-space") == ["--swap-space"]
    assert any("--ssl-keyfile" in name for name in names("TLS"))
    with pytest.raises(UserError, match="no such group or argument"):
        sections_about("zzzz")


def test_a_plugins_arguments_report_every_problem():
    from core_speculative.ngram.manifest import NgramArguments

    struct, problems = convert_struct(NgramArguments, {"prompt-lookup-max": "4"}, "--x")
    assert problems == [] and struct.prompt_lookup_max == 4
    struct, problems = convert_struct(NgramArguments, {"prompt_lookup_mx": 1, "prompt_lookup_min": "a"}, "--x")
    assert struct is None and len(problems) == 2
    assert "'prompt_lookup_max'" in problems[0]
    _, problems = convert_struct(NgramArguments, {"prompt_lookup_max": 2, "prompt_lookup_min": 3}, "--x")
    assert "prompt_lookup_min is 3" in problems[0]
    assert convert_struct(None, {"a": 1}, "--x")[1] == ["--x.a: unknown key; it takes no arguments."]


def test_every_argument_says_what_it_is_and_since_when():
    for field in [*schema().fields.values(), *(k for f in schema().fields.values() for k in f.keys.values())]:
        assert field.arg.help.endswith("."), field.name
        assert field.arg.since, field.name


def test_the_schema_is_built_without_torch():
    code = "import sys; import core.args.schema as s; s.schema(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.fixture
def schema_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Schema]]:
    """schema_of(source) -> the schema with the group `FurtherArgs` of that module beside the installed ones."""
    real = schema_module.offers
    module = ModuleType("further_arguments")

    def made(source: str) -> Schema:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, module.__name__, "exec", dont_inherit=True), module.__dict__)
        offer = Offer("core-further", "1.0", "further", "further_arguments:FurtherArgs")
        monkeypatch.setattr(schema_module, "offers", lambda group: [*real(group), offer])
        schema.cache_clear()
        return schema()

    yield made
    schema.cache_clear()


FURTHER = """
from typing import Annotated, ClassVar
from core.args.arg import Arg, ArgumentGroup

class FurtherArgs(ArgumentGroup, frozen=True, kw_only=True):
    '''Further arguments.'''

    place: ClassVar[int] = 15
    for_servers: ClassVar[bool] = True
    NAME: Annotated[int, Arg("A number.", ge=1)] = 3
"""


def test_a_distribution_adds_a_group_of_arguments_at_its_place(schema_of):
    found = schema_of(FURTHER.replace("NAME", "further_number"))
    assert list(found.titles)[:3] == ["model", "further", "pooling"]
    assert found.fields["further_number"].default == 3 and "further" in found.server_groups


def test_an_argument_of_two_distributions_is_refused_by_name(schema_of):
    with pytest.raises(PluginError, match=r"core-further declares the argument 'max_num_seqs', .* 'scheduler'"):
        schema_of(FURTHER.replace("NAME", "max_num_seqs").replace("15", "500"))


def test_arguments_that_cannot_be_imported_name_their_distribution(schema_of):
    with pytest.raises(PluginError, match=r"'further' of core-further cannot be used"):
        schema_of("")
    with pytest.raises(PluginError, match=r"'further' of core-further cannot be used .* no group of arguments"):
        schema_of("FurtherArgs = 3")


@pytest.mark.parametrize(
    "given", ['[{"name": "a", "path": "/x"}]', [{"name": "a", "path": "/x"}], '{"name": "a", "path": "/x"}']
)
def test_adapters_may_be_named_as_json(given: object) -> None:
    assert convert(schema().fields["lora_modules"], given) == ['{"name": "a", "path": "/x"}']


def test_objects_in_other_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="list of texts"):
        convert(schema().fields["served_model_name"], '[{"a": 1}]')
