"""A matrix for each head, and a whole latent mixer on native kernels: values in float64, equal bits, recorded and replayed."""

import pytest
import torch

from core.api.specs import LatentSpec
from core_platforms.cpu.tape import Tape, record
from core_runtime.layers.heads import BatchedHeads, LinearHeads
from core_runtime.layers.kernels import KernelSet
from core_runtime.layers.linear import Linear
from core_runtime.layers.rows import RowKernels
from core_runtime.layers.workspace import Workspace
from core_runtime.models.mixers.latent import LatentMixer
from core_runtime.models.norm import Norm
from core_runtime.specs.block_spec import HeadsSpec
from core_runtime.specs.mixer_parts import latent_parts
from core_runtime.weights.formats import Dense

HEADS, K, N, ROWS, HIDDEN = 3, 20, 44, 9, 32
SPEC = LatentSpec(HEADS, rank=24, rope_size=8, head_size_nope=12, head_size_v=10, scale=0.2, q_rank=16)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype, activation, allowed", [("float32", "none", 1e-5), ("bfloat16", "bf16", 3e-2)])
@pytest.mark.parametrize("provider", ["native", "torch", "rows"])
def test_every_head_has_its_matrix(kernels, provider, dtype, activation, allowed):
    providers = {"native": [kernels], "torch": [], "rows": [RowKernels()]}[provider]
    weight = random(HEADS, N, K).to(getattr(torch, dtype))
    heads = KernelSet(providers).heads(weight, activation=activation)
    assert isinstance(heads, BatchedHeads if provider == "torch" else LinearHeads)
    assert heads.nbytes >= weight.nbytes
    x = random(ROWS, HEADS, K + 5, seed=1)[..., 2 : K + 2]
    wide = torch.full((ROWS, HEADS, N + 3), torch.nan)
    heads(x, wide[..., :N])
    expected = torch.einsum("thk,hnk->thn", x.double(), weight.double())
    scale = expected.abs().max().item()
    torch.testing.assert_close(wide[..., :N].double(), expected, atol=allowed * scale, rtol=0)
    assert wide[..., N:].isnan().all()


class Echo:
    """Gives every query back: what a backend with native calls would look like to a tape."""

    capture = "any"

    def __init__(self, kernels):
        self.kernels = kernels
        self.rows = torch.arange(ROWS)
        self.written = torch.zeros(ROWS, SPEC.rank)

    def write_latent(self, handle, c, k_pe, metadata):
        self.kernels.take_rows(c, self.rows[: len(c)], self.written[: len(c)])

    def forward_latent(self, handle, q_latent, q_pe, metadata, out):
        self.kernels.take_rows(q_latent.flatten(1), self.rows[: len(out)], out.flatten(1))


def test_a_latent_mixer_is_recorded_and_replayed(kernels):
    parts, provider = (
        latent_parts(SPEC, "attn", HIDDEN, HeadsSpec(out_bias=True), interleaved=True),
        KernelSet([kernels]),
    )

    def linear(shape, seed):
        bias = random(shape[0], seed=seed + 50)
        return provider.linear(Dense(random(*shape, seed=seed)), activation="none", bias=bias)

    linears = {
        role: Linear([linear(part.shape, 10 * number + len(role)) for number, part in enumerate(made)])
        for role, made in parts.linears.items()
    }
    heads = tuple(provider.heads(random(*half.shape, seed=7), activation="none") for half in parts.halves)
    norms = {}
    for role, norm in parts.norms.items():
        norms[role] = Norm(provider, norm.spec, random(*norm.shape, seed=8).abs())
    mixer = LatentMixer(SPEC, provider, linears, heads, norms)
    workspace = Workspace(torch.device("cpu"))
    for name, width in parts.buffers.items():
        workspace.reserve(name, ROWS, width + 3, torch.float32)
    angles = torch.outer(torch.arange(64.0), torch.rand(SPEC.rope_size // 2))
    mixer.attach(workspace, (angles.cos(), angles.sin()))
    backend = Echo(provider)
    mixer.bind(backend, None)
    assert all(part.capturable for part in mixer.linears)
    x, out, positions = random(ROWS, HIDDEN), torch.zeros(ROWS, HIDDEN), torch.arange(ROWS)

    def run(rows):
        mixer(x[:rows], positions[:rows], None, out[:rows], accumulate=False)

    tape = record(lambda: run(2), 2, 1)
    assert isinstance(tape, Tape)
    for rows in (1, 2, 5, ROWS):
        x.copy_(random(ROWS, HIDDEN, seed=rows))
        run(rows)
        expected, written = out[:rows].clone(), backend.written[:rows].clone()
        out.fill_(torch.nan)
        backend.written.fill_(torch.nan)
        tape(rows, 1)
        assert torch.equal(out[:rows], expected) and torch.equal(backend.written[:rows], written)
