"""Plugins made on the spot: manifests in temporary files, and distributions that are only metadata."""

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


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(distribution, version, {group: {name: manifest source}}) -> rows of that distribution.

    A real distribution on `sys.path`: an importable package beside its metadata, as pip leaves them.
    """
    import importlib
    import sys

    from core.plugin.discovery import discover

    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def make(distribution, version, groups, *, header=HEADER, editable=None, look=True):
        package = distribution.replace("-", "_")
        folder = (editable or site) / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        lines = []
        for group, entries in groups.items():
            lines.append(f"[{group}]")
            for name, source in entries.items():
                sound = f"\n@hookimpl\ndef core_spec():\n    return PluginSpec(name={name!r})\n"
                sound += "@hookimpl\ndef core_load(context):\n    return object()\n"
                (folder / f"{name}.py").write_text(header + sound + textwrap.dedent(source))
                lines.append(f"{name} = {package}.{name}")
        info = site / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        if not look:
            return []
        importlib.invalidate_caches()
        return [row for row in discover([str(site)]) if row.distribution == distribution]

    make.site = site
    yield make
    for name in set(sys.modules) - before:
        if str(site) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
