"""The FlashAttention versions that this engine can use. Torch-free.

Owns: the table of versions, and the detection of the installed ones. Never does: import one. Called by: the manifest
and the backend.
"""

from __future__ import annotations

import importlib.util
from typing import Final, NamedTuple

from core.api.reason import Reason
from core.api.specs import AttentionQuery, AttentionSpec
from core_attention.paged_limits import of_one_size
from core_platforms.cuda.chips import sm_of

HEAD_MULTIPLE: Final = 8
MAX_HEAD_SIZE: Final = 256


class Version(NamedTuple):
    """A FlashAttention version and its limits.

    module: the import name.
    package: the package that provides it, for messages.
    least, most: range of architectures, 90 for `sm_90`.
    block_multiple: the cache's block size must be a multiple of it.
    alibi: whether it supports ALiBi slopes.
    """

    module: str
    package: str
    least: int
    most: int
    block_multiple: int
    alibi: bool


VERSIONS: Final = (
    Version("flash_attn_interface", "flash-attn-3", least=90, most=90, block_multiple=1, alibi=False),
    Version("flash_attn", "flash-attn", least=80, most=129, block_multiple=256, alibi=True),
)
"""Known versions, best first."""


def installed() -> list[Version]:
    """Return the installed versions, best first."""
    return [version for version in VERSIONS if importlib.util.find_spec(version.module) is not None]


def fitting(query: AttentionQuery) -> tuple[Version | None, list[Reason]]:
    """Return the first installed version that serves a layer; or None, and why the best one does not."""
    versions = installed()
    if not versions:
        names = " or ".join(version.package for version in VERSIONS)
        return None, [Reason("missing_library", names, "not installed", "pip install flash-attn")]
    refused: list[Reason] = []
    for version in versions:
        reasons = _reasons(version, query)
        if not reasons:
            return version, []
        refused = refused or reasons
    return None, refused


def _reasons(version: Version, query: AttentionQuery) -> list[Reason]:
    """Return the reasons why a version cannot serve a layer."""
    reasons = of_one_size(query)
    sm = sm_of(query.profile)
    if sm and not version.least <= sm <= version.most:
        reasons.append(Reason("device", f"sm_{version.least} to sm_{version.most} for {version.package}", f"sm_{sm}"))
    if query.block_size % version.block_multiple:
        expected = f"a multiple of {version.block_multiple} for {version.package}"
        reasons.append(Reason("block_size", expected, str(query.block_size), "--block-size chooses another"))
    spec = query.spec
    if not isinstance(spec, AttentionSpec):
        return reasons
    if spec.head_size % HEAD_MULTIPLE or spec.head_size > MAX_HEAD_SIZE:
        expected = f"a multiple of {HEAD_MULTIPLE} up to {MAX_HEAD_SIZE}"
        reasons.append(Reason("head_size", expected, str(spec.head_size)))
    if spec.alibi and not version.alibi:
        reasons.append(Reason("alibi", f"layers without slopes for {version.package}", "yes"))
    return reasons
