"""`make test-parsers`: 100,000 random cuttings over all rows; every one has to give what the whole text gives."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from tests.response_formats.hostile import differs
from tests.response_formats.test_rendered_turns import ROWS, TURNS, cuttings


def main(count: int) -> int:
    """Run; the exit status."""
    source = random.Random(20)
    each = -(-count // len(TURNS))
    differences = []
    for name in TURNS:
        differences += cuttings(name, each, source)
    for _ in range(each):
        differences += [(*found, []) for row in ROWS.values() if (found := differs(row, source))]
    print(
        f"{each * len(TURNS)} cuttings of {len(TURNS)} formats, as many senseless answers, {len(differences)} differences"
    )
    for name, text, cuts in differences[:5]:
        print(name, repr(text), cuts)
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
