"""The kit for plugin authors: a plugin's contract as executable checks.

Owns: the conformance suites, tiny checkpoints, the skeleton of a new package. Never does: serve anything.
Called by: `core plugins check`, `core plugins new`, and the tests of plugin packages:

    import pytest
    from core_kit import cases

    @pytest.mark.parametrize("case", cases("quantization", "rows8"), ids=str)
    def test_conformance(case):
        case()
"""

from core_kit.case import Case, Failure, Finding, Skipped, Subject
from core_kit.suite import cases

__all__ = ["Case", "Failure", "Finding", "Skipped", "Subject", "cases"]
