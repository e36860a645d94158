"""A store that gives objects, whole or a range of bytes of them."""

from pathlib import Path

from core.api.errors import CheckpointError


class Store:
    """Objects by key. A real one would speak HTTP with Range headers; this one reads files, and logs each request."""

    def __init__(self, root, log=""):
        self.root, self.log = Path(root), log

    def get(self, key, start=0, stop=None):
        """Bytes start to stop of an object. Raises CheckpointError."""
        try:
            with (self.root / key).open("rb") as file:
                file.seek(start)
                data = file.read() if stop is None else file.read(stop - start)
        except OSError as error:
            raise CheckpointError(f"toystore://{key}: {error.strerror or error}.") from error
        if stop is not None and len(data) != stop - start:
            raise CheckpointError(
                f"toystore://{key}: ends at byte {start + len(data)}, expected {stop}; upload it again."
            )
        if self.log:
            with open(self.log, "a", encoding="utf-8") as log:
                log.write(f"{key} {start} {start + len(data)}\n")
        return data
