"""The output of a batch: its results, sorted into file order at the end.

Owns: `OUT`. Never does: run a request. Called by: the run, `core run-batch`.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress

import msgspec

from core_apis.batches.batch_file import BatchFile
from core_apis.batches.results import BatchError, BatchResponse, KeptResults
from core_commands.client.refusal import sentence_in


class Results(KeptResults):
    """The results so far, and the output that they become."""

    def finish(self, batch: BatchFile) -> Counter[str]:
        """Write the output, a line for each place of `batch`, and remove the partial file.

        Returns the messages of failed results. Raises OutputError.
        """
        draft = self.out.with_name(self.out.name + ".new")
        errors: Counter[str] = Counter()
        try:
            with draft.open("wb") as file:
                for place in batch.places:
                    text = self.text(place)
                    told = _error_in(text)
                    if told:
                        errors[told] += 1
                    file.write(text + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.out)
            self.path.unlink()
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise self.unwritable(self.out, error) from None
        return errors


def _error_in(text: bytes) -> str:
    """Return the error message in an output line; empty for a successful answer."""
    line = msgspec.json.decode(text, type=_Outcome)
    if line.error is not None:
        return line.error.message
    if line.response is None or line.response.status_code == 200:
        return ""
    return sentence_in(bytes(line.response.body)) or f"status {line.response.status_code}"


class _Outcome(msgspec.Struct):
    """The counted fields of a result."""

    response: BatchResponse | None
    error: BatchError | None
