"""Checks of adapter formats: files that are not theirs, damaged ones, and the identity of an adapter.

Owns: the checks. Never does: judge what an adapter changes. Called by: `core_kit.suite`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from core.api.errors import UserError
from core_kit.case import Failure, Skipped, Subject
from core_runtime.weights.adapter_contents import AdapterContents


def claims_no_other_files(subject: Subject) -> None:
    """It claims neither a path that is not there nor a folder without an adapter."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "README.md").write_text("not an adapter\n")
        for path in ("/no/such/adapter", folder, str(Path(folder) / "README.md")):
            if subject.loaded.claims(path):
                raise Failure(f"claims answers yes for {Path(path).name}, which holds no adapter")


def missing_is_a_sentence(subject: Subject) -> None:
    """An adapter that is not there is a UserError."""
    try:
        subject.loaded.read("/no/such/adapter")
    except UserError:
        return
    except Exception as error:
        raise Failure(f"read raises {type(error).__name__} for a missing adapter; raise UserError") from None
    raise Failure("read accepts an adapter that does not exist")


def reads_the_same_twice(subject: Subject) -> None:
    """Reading an adapter twice gives the same digest, and changes of modules."""
    if subject.model is None:
        raise Skipped("no adapter was given; name one with --model")
    first, second = (subject.loaded.read(subject.model) for _ in range(2))
    if not isinstance(first, AdapterContents):
        raise Failure(f"read answers a {type(first).__name__}, expected an AdapterContents")
    if first.digest != second.digest or len(first.digest) != 64:
        raise Failure(
            f"the digest is {first.digest[:80]}, then {second.digest[:80]}; expected one sha256 of the adapter's files"
        )
    modules = [change.module for change in first.changes]
    if not modules or len(set(modules)) != len(modules):
        raise Failure("read answers no changes, or two of one module")


CHECKS = (claims_no_other_files, missing_is_a_sentence, reads_the_same_twice)
