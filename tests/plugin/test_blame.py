"""Whatever a plugin raises, wherever it is called, names its kind, its name and its distribution."""

import logging

import pytest

from core import LLM, SamplingParams
from core.api.errors import CoreError, PluginError

SETTINGS = {
    "device": "cpu",
    "max_model_len": 64,
    "kv_cache_memory_bytes": 4 << 20,
    "use_tqdm_on_load": False,
    "enforce_eager": True,
}
LOADER = """
from core_loaders.safetensors.loader import SafetensorsLoader
class Bad(SafetensorsLoader):
    def %s(self, *_): return {}['oops']
@hookimpl
def core_load(context): return Bad()
"""
METHOD = """
from core.api.specs import DensePlan, PartPlan
class Bad:
    def plan(self, spec): %s
    def pack(self, spec, tensors): return {}['oops']
@hookimpl
def core_load(context): return Bad()
"""
PLANS = "return PartPlan((f'{spec.name}.weight',), 'int8_groups', 'none', 'x', 1) if spec.role == 'linear' else %s"
DENSE = "DensePlan((f'{spec.name}.weight',))"
ATTENTION = """
@hookimpl
def core_load(context):
    from core_attention.torch_sdpa.backend import TorchSDPA
    class Bad(TorchSDPA):
        def %s(self, *_): return {}['oops']
    return Bad()
"""
KERNELS = """
@hookimpl
def core_load(context):
    from core_runtime.layers.reference import ReferenceKernels
    class Bad(ReferenceKernels):
        def %s(self, *_, **__): return {}['oops']
    return Bad()
"""
PLATFORM = """
@hookimpl
def core_probe(): return Probe((Device('bad:0', '', 1 << 30, 1 << 30),))
@hookimpl
def core_propose(view): return {'kernels': Proposal([], '')}
@hookimpl
def core_load(context):
    from core_platforms.cpu.runtime import CpuPlatform, CpuRuntime
    class Bad(CpuPlatform):
        def open(self, device, kernels):
            runtime = super().open('cpu', kernels)
            runtime.allocate = self.allocate
            return runtime
        def allocate(self, nbytes): return {}['oops']
    return Bad(1)
"""
PROPOSER = """
class Bad:
    def on_start(self, key, token_ids): ...
    def propose(self, batch): return {}['oops']
    def on_finished(self, key): ...
@hookimpl
def core_load(context): return Bad()
"""
POLICY = """
from core_policies.fcfs.policy import FcfsPolicy
class Bad(FcfsPolicy):
    def %s(self, *_): return {}['oops']
@hookimpl
def core_load(context): return Bad()
"""
DRAFTS = {"speculative_config": {"method": "bad", "num_speculative_tokens": 2}}

STARTS = {
    "loader.resolve": ("loader", LOADER % "resolve", {"load_format": "bad"}),
    "loader.iter": ("loader", LOADER % "iter", {"load_format": "bad"}),
    "quantization.plan": ("quantization", METHOD % "return {}['oops']", {"quantization": "bad"}),
    "quantization.pack": ("quantization", METHOD % (PLANS % DENSE), {"quantization": "bad"}),
    "attention.bind": ("attention", ATTENTION % "bind", {"attention_backend": "bad"}),
    "attention.kv_layout": ("attention", ATTENTION % "kv_layout", {"attention_backend": "bad"}),
    "kernels.linear": ("kernels", KERNELS % "linear", {"kernels": ["bad"]}),
    "platform.allocate": ("platform", PLATFORM, {"device": "bad", "attention_backend": "torch_sdpa"}),
    "policy.make_queue": ("policy", POLICY % "make_queue", {"scheduling_policy": "bad"}),
}
STEPS = {
    "attention.build": ("attention", ATTENTION % "build", {"attention_backend": "bad"}),
    "kernels.gated": ("kernels", KERNELS % "gated", {"kernels": ["bad"]}),
    "policy.order": ("policy", POLICY % "order", {"scheduling_policy": "bad"}),
}
GROUPS = {"policy": "core.policies", "platform": "core.platforms", "loader": "core.loaders"}
SUPPORTS = "@hookimpl\ndef core_supports(query): return []\n"


@pytest.fixture
def bad(install, monkeypatch):
    """bad(kind, source) installs the plugin `bad` beside an innocent one of the same package."""

    def make(kind, source):
        innocent = {"core.speculative": {"innocent": PROPOSER}} if kind != "speculative" else {}
        install("bad-package", "3.1", {GROUPS.get(kind, f"core.{kind}"): {"bad": SUPPORTS + source}, **innocent})
        monkeypatch.setenv("PYTHONPATH", str(install.site))

    return make


@pytest.mark.parametrize("kind, source, settings", STARTS.values(), ids=STARTS)
def test_a_start_that_fails_names_the_plugin(bad, tiny_llama, kind, source, settings):
    bad(kind, source)
    with pytest.raises(CoreError) as caught:
        LLM(str(tiny_llama), **{**SETTINGS, **settings})
    assert f"{kind} plugin 'bad' (bad-package 3.1)" in str(caught.value)
    assert "KeyError: 'oops'" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind, source, settings", STEPS.values(), ids=STEPS)
def test_a_request_that_fails_names_the_plugin(bad, tiny_llama, caplog, kind, source, settings):
    bad(kind, source)
    with LLM(str(tiny_llama), **{**SETTINGS, **settings}) as llm, caplog.at_level(logging.ERROR, logger="core"):
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [1, 40, 40, 40]}], params, use_tqdm=False)
    (choice,) = output.outputs
    assert choice.finish_reason == "error"
    assert f"{kind} plugin 'bad' (bad-package 3.1)" in choice.stop_reason and "KeyError: 'oops'" in choice.stop_reason
    logged = [record for record in caplog.records if record.exc_info]
    assert logged and all("Traceback" not in str(output) for output in output.outputs)


PROMPT = [{"prompt_token_ids": [1, 40, 40, 40]}]
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0)


@pytest.fixture(scope="module")
def plain_token_ids(tiny_llama):
    """The greedy tokens of an engine without drafts."""
    with LLM(str(tiny_llama), **SETTINGS) as llm:
        (output,) = llm.generate(PROMPT, GREEDY, use_tqdm=False)
    return output.outputs[0].token_ids


PROPOSALS = {
    "raising": ("{}['oops']", "Bad.propose failed: KeyError: 'oops'"),
    "leaving": ("__import__('sys').exit('goodbye')", "it called sys.exit(goodbye)"),
    "hanging": ("__import__('threading').Event().wait(60)", "no answer within 0.3 s"),
    "beyond the vocabulary": ("[[7, 10**6] for _ in batch.keys]", "the draft 1000000, expected tokens from 0 to"),
    "below it": ("[[-2] for _ in batch.keys]", "the draft -2, expected tokens from 0 to"),
    "too many": ("[[5] * 3 for _ in batch.keys]", "3 drafts, expected at most 2"),
    "for nobody": ("[]", "0 lists of drafts for 1 sequences"),
    "nothing": ("None", "None, expected a list of token ids for each sequence"),
    "no tokens": ("[[float('nan')] for _ in batch.keys]", "[[nan]], expected a list of token ids for each sequence"),
}


@pytest.mark.parametrize("answer, words", PROPOSALS.values(), ids=PROPOSALS)
def test_a_proposer_that_fails_is_named_and_done_without(
    bad, tiny_llama, plain_token_ids, caplog, monkeypatch, answer, words
):
    if "within" in words:
        monkeypatch.setattr("core_runtime.executor.drafts.checked_proposer.LIMIT_S", 0.3)
    bad("speculative", PROPOSER.replace("{}['oops']", answer))
    with LLM(str(tiny_llama), **{**SETTINGS, **DRAFTS}) as llm, caplog.at_level(logging.ERROR, logger="core"):
        (output,) = llm.generate(PROMPT, GREEDY, use_tqdm=False, explain=True)
        stats = llm.stats()
    assert output.outputs[0].token_ids == plain_token_ids
    (logged,) = [record.message for record in caplog.records]
    assert logged == stats.spec_off == output.explain.drafts.off
    assert "speculative plugin 'bad' (bad-package 3.1)" in logged and words in logged
    assert logged.endswith(" It drafts no more until the engine starts anew.")


def test_the_nearest_frame_counts_and_the_users_mistakes_stay(install):
    from core.api.errors import UserError
    from core.plugin.hookspecs import LoadContext
    from core.plugin.table import PluginTable

    rest = "\n    def propose(self, batch): ...\n    def on_finished(self, key): ...\n"
    outer = f"class Bad:\n    def on_start(self, key, token_ids): key(){rest}"
    inner = f"class Bad:\n    def on_start(self, key, token_ids): raise key{rest}"
    load = "@hookimpl\ndef core_load(context): return Bad()\n"
    rows = install("outer", "1", {"core.speculative": {"outer": outer + load}})
    rows += install("inner", "1", {"core.speculative": {"inner": inner + load}})
    table = PluginTable(rows)
    first, second = (table.load("speculative", name, LoadContext()) for name in ("outer", "inner"))

    def raised(error):
        try:
            first.on_start(lambda: second.on_start(error, []), [])
        except Exception as caught:
            return table.blamed(caught)

    assert "speculative plugin 'inner' (inner 1): Bad.on_start failed: ValueError: no (" in str(
        raised(ValueError("no"))
    )
    assert raised(PluginError("no device")).plugin == rows[1]
    mistake, foreign = UserError("a typo"), ValueError("of nobody")
    assert raised(mistake) is mistake and table.blamed(foreign) is foreign
