"""`core save-sharded MODEL OUT`: write a model's tensors to files that `--load-format sharded_state` reads.

Owns: the command's arguments and output. Never does: write a tensor itself. Called by: the frame.
"""

from __future__ import annotations

import sys
from pathlib import Path

from core.api.errors import UserError
from core.args.show import Section, show
from core.commands.words import take_help, take_value
from core_commands.cli.options import parse_engine_arguments
from core_config.arguments.numbers import human_int
from core_config.locating.located import locate
from core_runtime.models.tensors.shards import DEFAULT

USAGE = "core save-sharded MODEL OUT [--max-file-size BYTES] [--file-pattern NAME] [ARGUMENTS]"
SUMMARY = "Write a model's tensors, as they are, to a directory for --load-format sharded_state."
ROWS = (
    ("MODEL", "A directory, file or hub name."),
    ("OUT", "A new directory."),
    ("--max-file-size BYTES", "Bytes of tensors in one file. Default: 5G."),
    ("--file-pattern NAME", f"Names of the files. Default: {DEFAULT}."),
    ("ARGUMENTS", "About the model and its loading, as of core serve."),
)


def save_sharded(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if take_help(words) is not None:
        show(USAGE, SUMMARY, [Section("Arguments", ROWS)])
        return 0
    size = take_value(words, "--max-file-size") or "5G"
    pattern = take_value(words, "--file-pattern") or DEFAULT
    model, out = take_places(words, "save-sharded")
    try:
        max_bytes = human_int(size)
    except ValueError as error:
        raise UserError(f"--max-file-size {size}: {error}.") from None
    parsed = parse_engine_arguments([model, *words])
    loader, manifest, warnings = locate(parsed.values, parsed.problems)
    for warning in [*parsed.warnings, *warnings]:
        print(f"warning: {warning}", file=sys.stderr)
    from core_runtime.models.tensors import saving

    count = saving.save_sharded(loader, manifest, out, pattern=pattern, max_bytes=max_bytes, progress=True)
    print(f"{out}: {len(manifest.tensors)} tensors in {count} file{'s' if count > 1 else ''}")
    if manifest.tokenizer.vocabulary is not None:
        print(f"{manifest.ref} has its tokenizer inside, which is not written; serve {out} with --tokenizer.")
    return 0


def take_places(words: list[str], command: str) -> tuple[str, Path]:
    """Remove MODEL and OUT from the beginning of `words`. Raises UserError."""
    if len(words) < 2 or words[0].startswith("-") or words[1].startswith("-"):
        raise UserError(f"core {command}: name a model and a new directory first: core {command} MODEL OUT.")
    model, out = words[:2]
    del words[:2]
    return model, Path(out).expanduser().absolute()
