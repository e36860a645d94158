"""A plugin that breaks a promise: a sound implementation with some words changed, and the check that must notice."""

import textwrap

from core_kit import cases
from core_kit.skeleton import renamed

HEADER = """
from core.api.reason import Reason
from core.plugin.hookspecs import Device, PluginSpec, Probe, Proposal, hookimpl
CONTRACT = 1
"""


def plugin(tmp_path, kind, code, changes=(), spec=""):
    """A plugin in one file: a template's implementation with some words changed, and a manifest around it."""
    text = renamed(code, "cheat", kind) if code else ""
    for old, new in changes:
        assert old in text, f"'{old}' is no longer in the template"
        text = text.replace(old, new)
    (tmp_path / "implementation.py").write_text(text)
    manifest = f"""
    import importlib.util, sys
    KIND = {kind!r}
    @hookimpl
    def core_spec():
        return PluginSpec(name="cheat", summary="it cheats"{spec})
    @hookimpl
    def core_load(context):
        name = "implementation_of_cheat_" + {str(abs(hash(str(tmp_path))))!r}
        spec = importlib.util.spec_from_file_location(name, {str(tmp_path / "implementation.py")!r})
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return build(module)
    """
    return HEADER + textwrap.dedent(manifest)


def failing(tmp_path, kind, source, words, **options):
    """The check whose title has `words` fails, with a sentence, which is returned."""
    path = tmp_path / "cheat.py"
    path.write_text(source)
    (case,) = [case for case in cases(kind, "cheat", plugins=str(path), **options) if words in str(case)]
    finding = case.finding()
    assert finding.verdict == "failed" and finding.sentence.strip(), finding
    assert "Traceback" not in finding.sentence
    return finding.sentence
