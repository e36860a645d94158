"""Attention backends that cheat are found by the check that is meant to find them, and by a sentence."""

from __future__ import annotations

import pytest

from core.testing.skeleton import TEMPLATES
from tests.testing.cheats import failing, plugin

BACKEND = (TEMPLATES / "attention/core_my_plugin/backend.py").read_text()
SDPA, CACHE = (
    (TEMPLATES.parents[2] / "plugins/attention/torch_sdpa" / file).read_text() for file in ("backend.py", "cache.py")
)
STORE = CACHE + SDPA.replace("from __future__ import annotations\n", "").replace(
    "from plugins.attention.torch_sdpa.cache import StoredHeads\n", ""
)
"""A backend of every KV type and kind of layer, in one file."""
BACKENDS = {
    "ignores windows": ([("if spec.window is not None:", "if False:")], "claims to support equals"),
    "ignores the scale": ([("* spec.scale", "")], "claims to support equals"),
    "reads beyond the end": (
        [
            (".flatten(0, 1)[:length].float()", ".flatten(0, 1).float()"),
            ("key = torch.arange(length)", "key = torch.arange(len(k))"),
        ],
        "claims to support equals",
    ),
    "writes elsewhere": ([("block, offset = ", "handle.keys[-1] = 0\n        block, offset = ")], "its own slots"),
    "takes more memory": ([("return KVLayout(2 *", "return KVLayout(4 *")], "more bytes than the memory plan"),
    "sees the future": ([("hidden = key > query", "hidden = key > query + 1")], "claims to support equals"),
}
STORED = {
    "ignores sinks": ([("if handle.sinks is None:", "if True:")], "claims to support equals", "sinks"),
    "adds sinks to the values": (
        [(".softmax(-1)[..., :-1]", "[..., :-1].softmax(-1)")],
        "claims to support equals",
        "sinks",
    ),
    "ignores slopes": ([("if handle.slopes is not None:", "if False:")], "claims to support equals", "slopes"),
    "counts slopes from the start": (
        [("torch.arange(keys - queries, keys, device=q.device)", "torch.arange(queries, device=q.device)")],
        "Prompts in chunks",
        "slopes",
    ),
    "ignores the scale of keys": ([("dtype, params.k_scale", "dtype, 1.0")], "claims to support equals", "fp8_e4m3"),
    "takes the keys' scale for values": (
        [("params.v_scale", "params.k_scale")],
        "claims to support equals",
        "fp8_e4m3",
    ),
    "reads e5m2 as e4m3": (
        [('"fp8_e5m2": torch.float8_e5m2', '"fp8_e5m2": torch.float8_e4m3fn')],
        "claims to support equals",
        "fp8_e5m2",
    ),
    "shares a scale between heads": (
        [("amax(-1, keepdim=True)", "amax((-2, -1), keepdim=True).expand(-1, x.shape[1], 1)")],
        "claims to support equals",
        "per_token_head",
    ),
    "shares a scale between tokens": (
        [("amax(-1, keepdim=True)", "amax((0, -1), keepdim=True).expand(x.shape[0], -1, 1)")],
        "claims to support equals",
        "per_token_head",
    ),
    "scales by what came before": (
        [
            ("largest = x.float()", "self._seen = largest = getattr(self, '_seen', 0) * 0.01 + x.float()"),
            (".amax(-1, keepdim=True)", ".amax().expand(*x.shape[:2], 1)"),
        ],
        "nothing but itself",
        "per_token_head",
    ),
    "forgets that scales take memory": (
        [
            (
                "KVLayout(block_size * KV_TYPES[dtype].token_bytes(spec))",
                "KVLayout(block_size * 4 * KV_TYPES[dtype].token_bytes(spec))",
            )
        ],
        "more bytes than the memory plan",
        "",
    ),
}


@pytest.mark.parametrize("changes, words", BACKENDS.values(), ids=BACKENDS)
def test_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'devices': ['cpu'], 'kv_dtypes': ['float32'], 'cap': False, 'block_sizes': [8]}"
    source = plugin(tmp_path, "attention", BACKEND, changes, capabilities)
    source += "\n@hookimpl\ndef core_supports(query):\n    same = query.spec.head_size == query.spec.head_size_v\n"
    source += (
        "    return [] if same else [Reason('head_size_v', 'the same')]\ndef build(module): return module.Backend()\n"
    )
    failing(tmp_path, "attention", source, words)


EVERYTHING = "'batch_invariant': True, 'sinks': True, 'alibi': True"
ALL_TYPES = f"'kv_dtypes': {['float32', 'fp8_e4m3', 'fp8_e5m2', 'fp8_per_token_head', 'int8_per_token_head']}"


@pytest.mark.parametrize("changes, words, subject", STORED.values(), ids=STORED)
def test_kv_types_sinks_and_slopes(tmp_path, changes, words, subject):
    source = plugin(tmp_path, "attention", STORE, changes, f", capabilities={{{ALL_TYPES}, {EVERYTHING}}}")
    source += "\ndef build(module): return module.TorchSDPA(by_query=True)\n"
    assert subject in failing(tmp_path, "attention", source, words)


DECLARED = {
    "a feature": (f"{ALL_TYPES}, 'sinks': True", "not query.spec.sinks", "declares sinks but refuses"),
    "a type": (ALL_TYPES, "query.dtype != 'fp8_e5m2'", "declares kv_dtypes fp8_e5m2 but refuses"),
    "a head size": (f"{ALL_TYPES}, 'head_sizes': [64, 96]", "query.spec.head_size == 64", "declares head_sizes 96 but"),
    "a type that nobody can choose": ("'kv_dtypes': ['float32', 'fp4']", "True", "'fp4', which nobody can choose"),
}


@pytest.mark.parametrize("capabilities, serves, sentence", DECLARED.values(), ids=DECLARED)
def test_declared_and_refused(tmp_path, capabilities, serves, sentence):
    source = plugin(tmp_path, "attention", STORE, (), f", capabilities={{{capabilities}}}")
    source += "\n@hookimpl\ndef core_supports(query):\n"
    source += f"    return [] if {serves} else [Reason('layer', 'another')]\n"
    source += "def build(module): return module.TorchSDPA()\n"
    assert sentence in failing(tmp_path, "attention", source, "that it declares is served")
