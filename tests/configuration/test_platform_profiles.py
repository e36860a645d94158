"""Defaults by usage context and device: the platforms' own tables."""

import os

import pytest

from core.plugin.hookspecs import Device, PlatformView
from core_config.arguments.sources import merge
from core_platforms.cpu import manifest as cpu
from core_platforms.cuda import manifest as cuda

GIB = 1 << 30
LARGE = Device("cuda:0", "", 141 * GIB, profile="sm_90")
OLDER = Device("cuda:0", "", 80 * GIB, profile="sm_80")
SMALL = Device("cuda:0", "", 24 * GIB, profile="sm_120")
HOST = Device("cpu", "", 8 * GIB, 16 * GIB, 4)


def proposed(platform, device, context, **arguments):
    values = {name: given.value for name, given in merge({}, {}).values.items()} | arguments
    answer = platform.core_propose(PlatformView(context, None, values, (), device))
    assert all(proposal.reason for proposal in answer.values())
    return answer["max_num_batched_tokens"].value, answer["max_num_seqs"].value


@pytest.mark.parametrize(
    "platform, device, offline, server",
    [
        (cuda, LARGE, (16384, 1024), (8192, 1024)),
        (cuda, OLDER, (8192, 256), (2048, 256)),
        (cuda, SMALL, (8192, 256), (2048, 256)),
        (cpu, HOST, (4096, 256), (2048, 128)),
    ],
)
def test_batches_by_use_and_device(platform, device, offline, server):
    assert proposed(platform, device, "llm") == offline
    assert proposed(platform, device, "serve") == server
    assert proposed(platform, device, "explain") == server


def test_ranks_multiply_on_the_processor():
    ranks = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}
    assert proposed(cpu, HOST, "llm", **ranks) == (6 * 4096, 6 * 256)
    assert proposed(cpu, HOST, "serve", **ranks) == (6 * 2048, 6 * 128)


@pytest.mark.parametrize("machine", ["ppc64le", "s390x", "riscv64", "x86_64", "aarch64"])
def test_processors_without_chunks_and_prefixes(monkeypatch, machine):
    system = os.uname()
    monkeypatch.setattr(os, "uname", lambda: type(system)((*system[:4], machine)))
    capabilities = cpu.core_spec().capabilities
    off = machine not in ("x86_64", "aarch64")
    assert (capabilities.get("chunked_prefill") is False) is off
    assert (capabilities.get("prefix_caching") is False) is off
