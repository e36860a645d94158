"""`core kernels build [--sm CHIP,...]`: compile kernels ahead, so that a start waits for no compiler.

Owns: the command's arguments and output, and which chips are in this machine. Never does: compile.
Called by: main.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec

from core.api.errors import PluginError, UserError, nearest
from core.args.arg import Arg
from core.args.show import show
from core.cli.options import take_help
from core.cli.own_options import option_section, refuse_rest, take_options
from core.plugin.contracts.ahead import BuildAhead, CompiledAhead
from core.plugin.hookspecs import Probe
from core.plugin.registry import PluginRegistry

USAGE = "core kernels build [--sm CHIP,...] [--jobs N]"
SUMMARY = "Compile kernels ahead of their first launch."


class KernelsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command's own options."""

    sm: Annotated[
        str | None,
        Arg("Chips to compile for, such as sm_90 or 90, separated by commas. Unset: those in this machine."),
    ] = None
    jobs: Annotated[
        int | None, Arg("Kernels compiled at the same time. Unset: as many as there are processors.", ge=1, le=256)
    ] = None


def kernels(words: list[str]) -> int:
    """Run the command; returns the exit code: 1 when a kernel could not be compiled."""
    if take_help(words) is not None:
        show(USAGE, SUMMARY, [option_section("Options", KernelsOptions)])
        return 0
    verb = words.pop(0) if words else ""
    if verb != "build":
        raise UserError(f"core kernels {verb}: expected `{USAGE}`.{nearest(verb, ['build'])}")
    options = take_options(KernelsOptions, words)
    refuse_rest("kernels", words, KernelsOptions)
    registry = PluginRegistry()
    chips = _named(options.sm) if options.sm else _found(registry)
    jobs = options.jobs or len(os.sched_getaffinity(0))
    done: list[CompiledAhead] = []
    for name, build in _builders(registry):
        print(f"{name}: compiling for {', '.join(chips)}")
        done += build(chips, jobs, _say)
    return _report(done)


def _named(text: str) -> list[str]:
    """The chips of the option, each once."""
    names: dict[str, None] = {}
    for word in text.split(","):
        name = word.strip().lower()
        names[f"sm_{name}" if name.isdigit() else name] = None
    return list(names)


def _found(registry: PluginRegistry) -> list[str]:
    """The chips of this machine. Raises UserError when there is none."""
    found: dict[str, None] = {}
    reasons: list[str] = []
    for row, answer in registry.probe().items():
        if not isinstance(answer, Probe):
            continue
        if answer.unavailable:
            reasons.append(f"{row.name}: {answer.unavailable}")
        for device in answer.devices:
            if device.profile:
                found[device.profile] = None
    if not found:
        raise UserError(
            f"core kernels build: no GPU was found here ({'; '.join(reasons)}); name the chips, such as --sm sm_90."
        )
    return list(found)


def _builders(registry: PluginRegistry) -> list[tuple[str, BuildAhead]]:
    """The providers whose kernels can be compiled ahead. Raises UserError, and PluginError for a broken one."""
    found: list[tuple[str, BuildAhead]] = []
    for row, manifest in registry.candidates("kernels"):
        target = "" if isinstance(manifest, str) else manifest.spec.capabilities.get("ahead")
        if not target:
            continue
        module, _, attribute = str(target).partition(":")
        try:
            found.append((row.name, getattr(importlib.import_module(module), attribute)))
        except (ImportError, AttributeError) as error:
            raise PluginError(f"kernels plugin '{row.name}': {target} is missing: {error}.") from error
    if not found:
        raise UserError("core kernels build: no installed plugin has kernels that can be compiled ahead.")
    return found


def _say(kernel: CompiledAhead, done: int, count: int) -> None:
    """One line a kernel: on a terminal, each writes over the one before unless something is wrong."""
    if kernel.error:
        print(f"[{done}/{count}] {kernel.chip} {kernel.name}: {kernel.error}", file=sys.stderr)
        return
    what = "was there" if kernel.was_there else f"{kernel.seconds:.1f} s"
    line = f"[{done}/{count}] {kernel.chip} {kernel.name}: {what}"
    if sys.stdout.isatty():
        print(f"\r\x1b[2K{line}", end="\n" if done == count else "", flush=True)
    else:
        print(line, flush=True)


def _report(done: Sequence[CompiledAhead]) -> int:
    failed = [kernel for kernel in done if kernel.error]
    had = sum(kernel.was_there for kernel in done)
    built = len(done) - had - len(failed)
    seconds = sum(kernel.seconds for kernel in done)
    print(f"{built} kernels compiled, {had} were there, {len(failed)} failed; {seconds:.0f} s of compilers' time.")
    return 1 if failed else 0
