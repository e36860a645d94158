"""`core convert MODEL OUT`: write a model's prepared kernels to a directory, from which starting needs no packing.

Owns: the command's arguments and output. Never does: prepare or write a kernel itself. Called by: the frame.
"""

from __future__ import annotations

import sys

from core.args.show import Section, show
from core.commands.words import take_help
from core_commands.cli.options import parse_engine_arguments
from core_commands.cli.save_sharded import take_places
from core_config.resolve import resolve
from core_config.stages.memory import human_bytes

USAGE = "core convert MODEL OUT [ARGUMENTS]"
SUMMARY = "Write a model's kernels, prepared for this engine, to a directory that core serve starts without packing."
ROWS = (
    ("MODEL", "A directory, file or hub name."),
    ("OUT", "A new directory."),
    ("ARGUMENTS", "About the model, its type and quantization, as of core serve; OUT is served with the same."),
)


def convert(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        show(USAGE, SUMMARY, [Section("Arguments", ROWS)])
        return 0
    model, out = take_places(words, "convert")
    parsed = parse_engine_arguments([model, *words])
    resolution = resolve(parsed.values, context="explain", problems=parsed.problems)
    for warning in [*parsed.warnings, *resolution.warnings]:
        print(f"warning: {warning}", file=sys.stderr)
    from core_runtime.executor.reloading import conversion

    index = conversion.convert(resolution.engine, out)
    print(f"{out}: {human_bytes(index.data_nbytes)}, the kernels of {len(index.kernels)} layers")
    if index.manifest.tokenizer.directory is None and index.manifest.tokenizer.vocabulary is None:
        print(f"{model} has no tokenizer; serve {out} with --tokenizer.")
    return 0
