"""Plugins made on the spot: manifests in temporary files, and distributions that are only metadata."""

from __future__ import annotations

import itertools
import textwrap

import pytest

from core.api.config import ResolvedPlugin

HEADER = """
from core.api.reason import Reason
from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl
CONTRACT = 1
"""


@pytest.fixture
def make_plugin(tmp_path):
    """make_plugin(kind, name, body, **spec) -> row; `body` follows a sound core_spec and core_load."""
    numbers = itertools.count()

    def make(kind, name, body="", *, distribution="", header=HEADER, sha256="", **spec):
        path = tmp_path / f"plugin_{next(numbers)}.py"
        arguments = "".join(f", {key}={value!r}" for key, value in spec.items())
        text = header + f"\nKIND = {kind!r}\n"
        text += f"@hookimpl\ndef core_spec():\n    return PluginSpec(name={name!r}{arguments})\n"
        text += "@hookimpl\ndef core_load(context):\n    return object()\n"
        path.write_text(text + textwrap.dedent(body))
        return ResolvedPlugin(
            kind=kind, name=name, target=f"file:{path}", distribution=distribution, version="1", sha256=sha256
        )

    return make


@pytest.fixture
def fake_distribution(tmp_path):
    """fake_distribution(name, version, {group: {name: target}}) -> the directory that holds it."""
    site = tmp_path / "site"

    def make(name, version, groups):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        text = "".join(
            f"[{group}]\n" + "".join(f"{entry} = {target}\n" for entry, target in entries.items())
            for group, entries in groups.items()
        )
        if text:
            (info / "entry_points.txt").write_text(text)
        return site

    return make
