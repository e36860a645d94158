"""The kit's checks of logits processors: the template keeps them, and each cheat is found by the check that is meant to."""

import pytest

from core_kit import cases
from core_kit.skeleton import TEMPLATES
from tests.kit.cheats import failing, plugin

PROCESSOR = (TEMPLATES / "logits_processor/core_my_plugin/processor.py").read_text()
BUILD = "\ndef build(module): return module.Processor()\n"
CHEATS = {
    "looks at its neighbours": (
        [("return changed", "return changed + logits.sum() * 1e-6")],
        "becomes the same by itself",
    ),
    "remembers drafts": (
        [("return changed", "self.calls = getattr(self, 'calls', 0) + 1\n        return changed + self.calls")],
        "when it comes again",
    ),
    "answers nothing": ([("return changed", "return None")], "Logits come back"),
    "answers NaN": ([("return changed", "return changed * torch.nan")], "Logits come back"),
    "lies about the largest": (
        [("is_argmax_invariant = False", "is_argmax_invariant = True")],
        "the largest logit stays the largest",
    ),
    "wants nobody": ([("return self._argument(params) is not None", "return False")], "Logits come back"),
    "fails on its own parameters": (
        [("if wanted is not None and wanted not in FIRST", "if wanted != 'even'")],
        "Parameters that it wants are valid",
    ),
    "does not bear the end of strangers": (
        [('"""Nothing is kept of sequences."""', "assert not changes.finished")],
        "The end of sequences is taken",
    ),
}


def test_the_template_keeps_every_promise(tmp_path):
    path = tmp_path / "cheat.py"
    path.write_text(plugin(tmp_path, "logits_processor", PROCESSOR) + BUILD)
    found = [case.finding() for case in cases("logits_processor", "cheat", plugins=str(path))]
    wrong = [finding for finding in found if finding.verdict not in ("passed", "skipped")]
    assert not wrong, wrong
    own = [finding for finding in found if finding.verdict == "passed"]
    assert len(own) > 6


@pytest.mark.parametrize("changes, words", CHEATS.values(), ids=CHEATS)
def test_cheats_are_found(tmp_path, changes, words):
    failing(tmp_path, "logits_processor", plugin(tmp_path, "logits_processor", PROCESSOR, changes) + BUILD, words)
