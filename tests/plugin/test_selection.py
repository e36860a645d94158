"""The rules of choice, stage by stage."""

import pytest

from core.api.errors import CoreError, UserError
from core.api.specs import AttentionQuery, AttentionSpec, LatentSpec, StateQuery, StateSpec
from core.plugin.registry import PluginRegistry
from core_config.selection import (
    select_attention,
    select_kernels,
    select_loader,
    select_platform,
    select_quantization,
    select_speculative,
)
from core_runtime.specs.checkpoint import CheckpointFacts, FileFacts

FILES = FileFacts("m", "/m", True, ("config.json",))
FULL = AttentionQuery(AttentionSpec(4, 2, 64, 64, 0.125), "cpu", "bfloat16", 16)
SLIDING = AttentionQuery(AttentionSpec(4, 2, 64, 64, 0.125, window=8), "cpu", "bfloat16", 16)
LATENT = AttentionQuery(LatentSpec(4, 32, 16, 24, 24, 0.16), "cpu", "bfloat16", 16)
STATE = StateQuery(StateSpec(op="spiral", inputs={"in_proj": 8}, output_size=8, state_size=4), "cpu")


def layer(dtype="bfloat16", **features):
    return AttentionQuery(AttentionSpec(4, 2, 64, 64, 0.125, **features), "cpu", dtype, 16)


def claims(text):
    return f"@hookimpl\ndef core_claim(facts): return {text!r}\n"


def probes(*names):
    devices = "".join(f"Device({name!r}, '', 1)," for name in names)
    return f"@hookimpl\ndef core_probe(): return Probe(({devices}), {'' if names else 'no driver'!r})\n"


def refuses(sentence):
    return f"@hookimpl\ndef core_supports(query): return [Reason('thing', {sentence!r})]\n"


def chosen(choice):
    return choice.selection.chosen


def verdicts(choice):
    return {candidate.name: candidate.verdict for candidate in choice.selection.candidates}


def facts(quantization=None):
    return CheckpointFacts("m", "f", "llama", quantization=quantization)


def test_loader_by_claim_then_priority_then_name(make_plugin):
    rows = [
        make_plugin("loader", "a"),
        make_plugin("loader", "c", claims("mine")),
        make_plugin("loader", "b", claims("mine too")),
        make_plugin("loader", "bad", "1 / 0"),
    ]
    choice = select_loader(PluginRegistry(rows), None, FILES)
    assert chosen(choice) == ("b",) and choice.selection.why == "mine too"
    assert verdicts(choice) == {"b": "chosen", "c": "fits", "a": "refused", "bad": "refused"}
    rows.append(make_plugin("loader", "z", claims("best"), priority=1))
    assert chosen(select_loader(PluginRegistry(rows), None, FILES)) == ("z",)
    assert chosen(select_loader(PluginRegistry(rows), "a", FILES)) == ("a",)
    with pytest.raises(UserError, match=r"no loader knows these files \(config.json\)"):
        select_loader(PluginRegistry(rows[:1]), None, FILES)


def test_an_explicit_choice_never_falls_back(make_plugin):
    rows = [
        make_plugin("attention", "good"),
        make_plugin("attention", "bad", "1 / 0"),
        make_plugin("attention", "no", refuses("a chip")),
    ]
    registry = PluginRegistry(rows)
    with pytest.raises(CoreError, match="ZeroDivisionError"):
        select_attention(registry, "bad", FULL, [], "cpu")
    with pytest.raises(UserError, match="thing: needs a chip"):
        select_attention(registry, "no", FULL, [], "cpu")
    assert chosen(select_attention(registry, None, FULL, ["bad", "no"], "cpu")) == ("good",)


def test_platform_preference_beats_priority(make_plugin):
    rows = [
        make_plugin("attention", "high", priority=9),
        make_plugin("attention", "low"),
        make_plugin("attention", "mid", priority=1),
    ]
    registry = PluginRegistry(rows)
    assert chosen(select_attention(registry, None, FULL, [], "cpu")) == ("high",)
    assert chosen(select_attention(registry, None, FULL, ["gone", "low", "mid"], "cpu")) == ("low",)


@pytest.mark.parametrize(
    "capabilities, query, code",
    [
        ({"head_sizes": [32, 128]}, FULL, "head_size: needs 32 or 128, got 64"),
        ({"kv_dtypes": ["float32"]}, FULL, "--kv-cache-dtype"),
        ({"block_sizes": [8]}, FULL, "--block-size"),
        ({"devices": ["cuda"]}, FULL, "device: needs cuda, got cpu"),
        ({"window": False}, SLIDING, "window"),
        ({"window": False}, FULL, None),
        ({"head_sizes": [64], "window": True}, SLIDING, None),
        ({}, layer(sinks=True), "sinks: needs layers without sinks, got yes"),
        ({"sinks": True}, layer(sinks=True), None),
        ({}, layer(alibi=True), "alibi: needs layers without alibi, got yes"),
        ({"alibi": True}, layer(alibi=True), None),
        ({}, layer(window=8, chunked=True), "chunked: needs layers without chunked, got yes"),
        ({}, layer(causal=False), "bidirectional: needs layers that see no later keys, got yes"),
        ({"bidirectional": True}, layer(causal=False), None),
        ({"cap": False}, layer(cap=5.0), "cap: needs layers without cap, got 5"),
        ({"kv_dtypes": ["float32", "fp8_e4m3"]}, layer("fp8_per_token_head"), "got fp8_per_token_head"),
        ({"kv_dtypes": ["float32", "fp8_e4m3"]}, layer("fp8_e4m3"), None),
    ],
)
def test_capabilities_are_checked_by_the_core(make_plugin, capabilities, query, code):
    body = "@hookimpl\ndef core_supports(query): return []\n"
    registry = PluginRegistry([make_plugin("attention", "a", body, capabilities=capabilities)])
    if code is None:
        assert chosen(select_attention(registry, None, query, [], "cpu")) == ("a",)
    else:
        with pytest.raises(UserError, match=code):
            select_attention(registry, None, query, [], "cpu")


def test_platform_by_priority_among_those_with_devices(make_plugin):
    rows = [
        make_plugin("platform", "absent", probes(), priority=9),
        make_plugin("platform", "gpu", probes("gpu:0", "gpu:1"), priority=5),
        make_plugin("platform", "chip", probes("chip")),
    ]
    registry = PluginRegistry(rows)
    choice, device = select_platform(registry, None)
    assert chosen(choice) == ("gpu",) and device.name == "gpu:0"
    assert verdicts(choice)["absent"] == "refused"
    assert select_platform(registry, "gpu:1")[1].name == "gpu:1"
    assert select_platform(registry, "chip")[1].name == "chip"
    assert select_platform(registry, "gpu")[1].name == "gpu:0"
    with pytest.raises(UserError, match="no such device; found: gpu:0, gpu:1"):
        select_platform(registry, "gpu:2")
    with pytest.raises(UserError, match="no driver"):
        select_platform(registry, "absent")


def test_a_device_has_the_number_of_its_name(make_plugin):
    """The platform leaves out the first device: the second is not the first then."""
    registry = PluginRegistry([make_plugin("platform", "gpu", probes("gpu:1", "gpu:3"))])
    assert select_platform(registry, "gpu:3")[1].name == "gpu:3"
    assert select_platform(registry, "gpu")[1].name == "gpu:1"
    with pytest.raises(UserError, match="no such device; found: gpu:1, gpu:3"):
        select_platform(registry, "gpu:0")


def test_quantization_explicit_then_declared_then_claimed(make_plugin):
    rows = [
        make_plugin("quantization", "one", claims("looks like it")),
        make_plugin("quantization", "two"),
        make_plugin("quantization", "too", alias_of="two"),
    ]
    registry = PluginRegistry(rows)
    assert chosen(select_quantization(registry, None, facts())) == ("one",)
    assert chosen(select_quantization(registry, None, facts("Two"))) == ("two",)
    assert chosen(select_quantization(registry, "two", facts())) == ("two",)
    assert chosen(select_quantization(registry, "too", facts("two"))) == ("two",)
    with pytest.raises(UserError, match="the checkpoint declares 'two'"):
        select_quantization(registry, "one", facts("two"))
    with pytest.raises(UserError, match=r"the checkpoint declares 'three'.*no such plugin"):
        select_quantization(registry, None, facts("three"))
    assert chosen(select_quantization(PluginRegistry(rows[1:]), None, facts())) == ()


def test_all_fitting_kernels_are_taken_best_first(make_plugin):
    rows = [
        make_plugin("kernels", "slow", capabilities={"devices": ["cpu"]}),
        make_plugin("kernels", "fast", capabilities={"devices": ["cpu"]}, priority=5),
        make_plugin("kernels", "gpu", capabilities={"devices": ["cuda"]}, priority=9),
        make_plugin("kernels", "uncompiled", refuses("a compiler"), priority=9),
    ]
    assert chosen(select_kernels(PluginRegistry(rows), "cpu")) == ("fast", "slow")
    assert chosen(select_kernels(PluginRegistry(rows), "cuda:3")) == ("gpu",)
    assert chosen(select_kernels(PluginRegistry([]), "cpu")) == ()


def test_no_proposer_unless_asked_for(make_plugin):
    registry = PluginRegistry([make_plugin("speculative", "s", priority=100)])
    assert chosen(select_speculative(registry, None, facts())) == ()
    assert chosen(select_speculative(registry, "S", facts())) == ("s",)


def test_doubles_are_fatal_when_they_win(make_plugin):
    rows = [
        make_plugin("loader", "same", claims("x"), distribution="one"),
        make_plugin("loader", "same", claims("x"), distribution="two"),
    ]
    with pytest.raises(UserError, match="one:same"):
        select_loader(PluginRegistry(rows), None, FILES)
    rows.append(make_plugin("loader", "best", claims("x"), priority=1))
    assert chosen(select_loader(PluginRegistry(rows), None, FILES)) == ("best",)


def test_layers_with_a_state_go_to_those_that_serve_the_op(make_plugin):
    rows = [
        make_plugin(
            "attention", "keys", "@hookimpl\ndef core_supports(query): return [] if query.block_size else []\n"
        ),
        make_plugin("attention", "other", capabilities={"layer_kinds": ["state"], "state_ops": ["circle"]}, priority=9),
        make_plugin(
            "attention", "picky", refuses("more"), capabilities={"layer_kinds": ["state"], "state_ops": ["spiral"]}
        ),
        make_plugin(
            "attention", "elsewhere", capabilities={"layer_kinds": ["state"], "state_ops": ["spiral"], "devices": ["x"]}
        ),
        make_plugin("attention", "mine", capabilities={"layer_kinds": ["full", "state"], "state_ops": ["spiral"]}),
    ]
    choice = select_attention(PluginRegistry(rows), None, STATE, (), "p")
    assert chosen(choice) == ("mine",) and choice.selection.kind == "attention.state"
    lost = {candidate.name: " ".join(candidate.reasons) for candidate in choice.selection.candidates}
    assert "layer_kind: needs full or sliding, got state" in lost["keys"]
    assert "state_op: needs circle, got spiral" in lost["other"]
    assert "thing" in lost["picky"] and "device" in lost["elsewhere"]
    with pytest.raises(UserError, match=r"keys.* refuses: layer_kind: .*--attention-backend full=NAME,state=NAME"):
        select_attention(PluginRegistry(rows), "keys", STATE, (), "p")


def test_layers_of_a_kind_go_to_those_that_declare_it(make_plugin):
    """A backend that says nothing serves keys and values; nobody is asked about a kind that they did not declare."""
    asked = "@hookimpl\ndef core_supports(query): return [] if query.spec.head_size else []\n"
    silent = make_plugin("attention", "silent", asked, priority=9)
    latent = make_plugin("attention", "latent", capabilities={"layer_kinds": ["latent"]}, priority=5)
    both = make_plugin("attention", "both", capabilities={"layer_kinds": ["full", "latent"]})
    registry = PluginRegistry([silent, latent, both])
    assert chosen(select_attention(registry, None, FULL, (), "p")) == ("silent",)
    choice = select_attention(registry, None, LATENT, (), "p")
    assert chosen(choice) == ("latent",) and verdicts(choice)["both"] == "fits"
    with pytest.raises(UserError, match=r"silent.* refuses: layer_kind: needs full or sliding, got latent"):
        select_attention(registry, "silent", LATENT, (), "p")
    with pytest.raises(UserError, match=r"attention.sliding: no attention backend can serve this model.*layer_kind"):
        select_attention(PluginRegistry([latent, both]), None, SLIDING, (), "p")
