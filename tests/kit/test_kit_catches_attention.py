"""Attention backends that cheat are found by the check that is meant to find them, and by a sentence."""

from pathlib import Path

import pytest

from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin
from tests.layout import ROOT

BACKEND = (TEMPLATES / "attention/core_my_plugin/backend.py").read_text()
LATENT_BACKEND = (Path(__file__).parents[1] / "external/latent_pages/core_latent_pages/backend.py").read_text()
SDPA = ROOT / "plugins/attention/core_attention/torch_sdpa"
STATES = [
    f"states/{name}.py" for name in ("functions", "step", "stored", "convolution", "recurrence", "delta", "short_conv")
]
STATES += [
    f"states/{name}.py"
    for name in ("mamba1", "mamba2", "gated_delta", "kda", "lightning", "cross_attention", "__init__")
]
STORE = "from __future__ import annotations\n" + "".join(
    line
    for file in ("levels.py", "cache.py", "latent.py", *STATES, "backend.py")
    for line in (SDPA / file).read_text().splitlines(keepends=True)
    if not line.startswith(("from __future__", "from core_attention."))
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
    "changes its input": ([("block, offset = ", "k += 1\n        block, offset = ")], "leaves q, k and v alone"),
    "reads what others wrote before the step": (
        [
            ("block, offset = ", "self.old = handle.keys.clone(), handle.values.clone()\n        block, offset = "),
            (
                "            query = torch.arange(",
                "            before = slice(0, length - queries)\n"
                "            for x, old in zip((k, v), self.old):\n"
                "                x[before] = old[blocks].flatten(0, 1)[before].float().repeat_interleave(group, 1)\n"
                "            query = torch.arange(",
            ),
        ],
        "another one of the same step writes",
    ),
}
LATENT_BACKENDS = {
    "forgets the rotated key": (
        [("torch.cat([q_latent[mine], q_pe[mine]], -1)", "torch.cat([q_latent[mine], 0 * q_pe[mine]], -1)")],
        "claims to support equals",
    ),
    "ignores the scale": ([("* handle.scale", "")], "claims to support equals"),
    "sees the future": ([("keys > positions", "keys > positions + 1")], "claims to support equals"),
    "reads beyond the end": ([("[table[number], :, : length - first]", "[table[number]]")], "claims to support equals"),
    "forgets what was before a chunk": (
        [
            (
                "range(-(-length // block_size))",
                "range(max(0, length - len(query)) // block_size, -(-length // block_size))",
            )
        ],
        "Prompts in chunks",
    ),
    "writes elsewhere": (
        [("        page, column", "        handle.pages[-1] = 0\n        page, column")],
        "its own slots",
    ),
    "takes more memory": (
        [("return KVLayout(block_size", "return KVLayout(2 * block_size")],
        "more bytes than the memory plan",
    ),
    "changes its input": (
        [("        page, column", "        c += 1\n        page, column")],
        "leaves q, k and v alone",
    ),
}
STORED = {
    "ignores sinks": ([("if handle.sinks is None:", "if True:")], "claims to support equals", "sinks"),
    "adds sinks to the values": (
        [
            ("[scores, sinks], -1).softmax(-1)", "[scores, sinks], -1)[..., :-1].softmax(-1)"),
            ("weights[..., :-1]", "weights"),
        ],
        "claims to support equals",
        "sinks",
    ),
    "ignores slopes": ([("if handle.slopes is not None:", "if False:")], "claims to support equals", "slopes"),
    "counts slopes from the start": (
        [("torch.arange(num_keys - num_queries, num_keys, device", "torch.arange(num_queries, device")],
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
            ("magnitude = wide", "self._seen = magnitude = getattr(self, '_seen', 0) * 0.01 + wide"),
            (".amax(-1, keepdim=True)", ".amax().expand(*x.shape[:2], 1)"),
        ],
        "nothing but itself",
        "per_token_head",
    ),
    "ignores the scale of latents": (
        [("latent_shape, dtype, params.k_scale", "latent_shape, dtype, 1.0")],
        "claims to support equals",
        "fp8_e4m3 of latents",
    ),
    "shares a scale between latents": (
        [
            (
                "self.latents.write(block, offset, c.unsqueeze(1))",
                "self.latents.write(block, offset, c.unsqueeze(1), c.abs().amax())",
            ),
            ("offset: Tensor, x: Tensor) -> None", "offset: Tensor, x: Tensor, most: Tensor | float = 0.0) -> None"),
            ("amax(-1, keepdim=True)", "amax(-1, keepdim=True).clamp(most)"),
        ],
        "claims to support equals",
        "per_token_head of latents",
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


@pytest.mark.parametrize("changes, words", LATENT_BACKENDS.values(), ids=LATENT_BACKENDS)
def test_latent_backends(tmp_path, changes, words):
    capabilities = ", capabilities={'layer_kinds': ['latent'], 'kv_dtypes': ['float32']}"
    source = plugin(tmp_path, "attention", LATENT_BACKEND, changes, capabilities)
    failing(tmp_path, "attention", source + "\ndef build(module): return module.LatentPages()\n", words)


EVERY_KIND = "'layer_kinds': ['full', 'sliding', 'latent']"
EVERYTHING = f"{EVERY_KIND}, 'batch_invariant': True, 'sinks': True, 'alibi': True"
ALL_TYPES = f"'kv_dtypes': {['float32', 'fp8_e4m3', 'fp8_e5m2', 'fp8_per_token_head', 'int8_per_token_head']}"


@pytest.mark.parametrize("changes, words, subject", STORED.values(), ids=STORED)
def test_kv_types_sinks_and_slopes(tmp_path, changes, words, subject):
    source = plugin(tmp_path, "attention", STORE, changes, f", capabilities={{{ALL_TYPES}, {EVERYTHING}}}")
    source += "\ndef build(module): return module.TorchSDPA(by_query=True)\n"
    assert subject in failing(tmp_path, "attention", source, words)


DECLARED = {
    "a feature": (f"{ALL_TYPES}, 'sinks': True", "not query.spec.sinks", "declares sinks but refuses"),
    "a kind of layer": (f"{ALL_TYPES}, {EVERY_KIND}", "query.spec.kind != 'latent'", "declares layer_kinds latent but"),
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


def test_kinds_claimed_to_be_invariant_are_tried(tmp_path):
    changes, words, _ = STORED["scales by what came before"]
    capabilities = f", capabilities={{{ALL_TYPES}, {EVERY_KIND}, 'invariant_kinds': ['sliding']}}"
    source = plugin(tmp_path, "attention", STORE, changes, capabilities)
    source += "\ndef build(module): return module.TorchSDPA(by_query=True)\n"
    assert "a window" in failing(tmp_path, "attention", source, words)


PADDED = {
    "writes rows without a slot": [("and int(slots.min()) < 0:", "and False:")],
    "counts padded sequences from the front": [
        ("enumerate(view.seq_lens_list):", "enumerate(view.seq_lens_list[2:]):")
    ],
}


@pytest.mark.parametrize("changes", PADDED.values(), ids=PADDED)
def test_padding(tmp_path, changes):
    capabilities = f", capabilities={{{ALL_TYPES}, {EVERY_KIND}, 'padding': True}}"
    source = plugin(tmp_path, "attention", STORE, changes, capabilities)
    source += "\ndef build(module): return module.TorchSDPA()\n"
    failing(tmp_path, "attention", source, "With `padding`")


def test_strided(tmp_path):
    """A copy of the blocks is not the cache that the engine saves and loads."""
    changes = [("= raw.split(sizes, dim=1)", "= raw.contiguous().split(sizes, dim=1)")]
    capabilities = f", capabilities={{{ALL_TYPES}, {EVERY_KIND}, 'strided': True}}"
    source = plugin(tmp_path, "attention", STORE, changes, capabilities)
    source += "\ndef build(module): return module.TorchSDPA()\n"
    failing(tmp_path, "attention", source, "With `strided`")
