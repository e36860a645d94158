"""What the tests of rows have measured, for the document that tells users.

Owns: one small file a variant. Never does: measure. Called by: the tests (write), the document (reads).
"""

import json
from typing import Any

from tests.families.oracle import CACHE

RESULTS = CACHE / "results"


def write(model_type: str, variant: str, **values: Any) -> None:
    """Add to what is known of a variant."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{model_type}.{variant.replace(' ', '_')}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {"model_type": model_type, "variant": variant, **values}
    path.write_text(json.dumps(known, indent=1))


def read() -> list[dict[str, Any]]:
    """Of all variants that were ever run here."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
