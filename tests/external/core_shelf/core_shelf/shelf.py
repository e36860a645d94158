"""Pages as files of a directory, written and read by one thread. Several engines may share the directory."""

import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from core.kv.connector import KVConnector


class Shelf(KVConnector):
    def __init__(self, directory, fingerprint):
        self._root = Path(directory)
        self._thread = ThreadPoolExecutor(1, "shelf")
        self.use_weights(None, fingerprint)

    def use_weights(self, config, fingerprint):
        self._folder = self._root / fingerprint()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._names = {path.name for path in self._folder.iterdir()}

    def can_load(self):
        return True

    def may_load(self, group, key):
        return self._name(group, key) in self._names

    def start_load(self, load):
        self._thread.submit(self._fill, load)

    def wants(self, group, key):
        return not self.may_load(group, key)

    def put(self, group, key, page, *, evicted):
        name = self._name(group, key)
        self._names.add(name)  # the thread writes it before it reads anything that is asked for from now on
        self._thread.submit(self._write, self._folder / name, page)

    def discard(self, group, key):
        name = self._name(group, key)
        self._names.discard(name)
        self._thread.submit((self._folder / name).unlink, missing_ok=True)

    def cleared(self):
        for name in self._names:
            self._thread.submit((self._folder / name).unlink, missing_ok=True)
        self._names = set()

    def close(self, timeout_s):
        self._thread.shutdown()

    def _fill(self, load):
        try:
            load.fill(self.may_load, self._read)
        finally:
            load.finish()

    def _read(self, group, key):
        name = self._name(group, key)
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            return None
        if zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
            return None
        return np.frombuffer(data, np.uint8, offset=4)

    def _write(self, path, page):
        data = page.tobytes()
        part = path.with_suffix(".part")
        part.write_bytes(zlib.crc32(data).to_bytes(4, "big") + data)
        part.rename(path)

    def _name(self, group, key):
        return hashlib.sha256(b"%d:" % group + key.digest + key.payload).hexdigest()
