"""The FlashAttention versions that this engine can use. Torch-free.

Owns: the table of versions, and the detection of the installed ones. Never does: import one. Called by: the manifest
and the backend.
"""

from __future__ import annotations

import importlib.metadata
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
    least, most: range of architectures whose paged caches it reads, 90 for `sm_90`.
    block_multiple: the cache's block size must be a multiple of it.
    alibi: whether it supports ALiBi slopes.
    sinks: whether it supports sinks.
    invariant: whether it can be told not to divide the keys of a sequence.
    """

    module: str
    package: str
    least: int
    most: int
    block_multiple: int
    alibi: bool = False
    sinks: bool = False
    invariant: bool = False


VERSIONS: Final = (
    Version("flash_attn_interface", "flash-attn-3", least=90, most=90, block_multiple=1, invariant=True),
    Version("flash_attn.cute", "flash-attn-4", least=90, most=119, block_multiple=1, sinks=True, invariant=True),
    Version("flash_attn", "flash-attn", least=80, most=129, block_multiple=256, alibi=True),
)
"""Known versions, best first. Those of version 4 are of 4.0.0b36, which reads paged caches on sm_90 to sm_119 only."""


def installed() -> list[Version]:
    """Return the installed versions, best first."""
    return [version for version in VERSIONS if _is_installed(version)]


def number_of(version: Version) -> str | None:
    """Return the number of an installed package; None without its metadata."""
    try:
        return importlib.metadata.version(version.package)
    except importlib.metadata.PackageNotFoundError:  # built in place, or not there
        return None


def _is_installed(version: Version) -> bool:
    """Whether a version can be imported. Nothing is imported to find out."""
    parent, _, child = version.module.partition(".")
    if child:  # part of another package, which looking for it would import
        return number_of(version) is not None
    spec = importlib.util.find_spec(parent)
    # version 4 alone leaves a folder without a module of this name
    return spec is not None and spec.origin is not None


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
    if spec.sinks and not version.sinks:
        reasons.append(Reason("sinks", f"layers without sinks for {version.package}", "yes"))
    return reasons
