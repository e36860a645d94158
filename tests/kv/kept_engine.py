"""An engine whose blocks lie in a file that outlives it, as with `--keep-kv`.

Owns: `KeptEngine`. Never does: damage the file. Called by: the tests of kept blocks, and the fuzzing of such files.
"""

import numpy as np

from core.kv.connectors import KVConnectors
from core_kv_connectors.kept.connector import KeptBlocks
from core_kv_connectors.kept.file import KeptFile, lay_out
from tests.kv.tier_fakes import PAGE_BYTES, PRINT, Engine

NUM_BLOCKS = 20


class KeptEngine(Engine):
    """An engine whose device is the file."""

    def __init__(self, file, fingerprint=PRINT, num_blocks=NUM_BLOCKS, **options):
        self.layout = lay_out(file, num_blocks, [PAGE_BYTES], 4)
        self.kept = KeptBlocks(KeptFile.open(file), lambda: fingerprint, PAGE_BYTES)
        super().__init__(KVConnectors([self.kept]), num_blocks, **options)
        shape = (num_blocks, PAGE_BYTES)
        self.device.blocks = np.memmap(f"/proc/self/fd/{file}", np.uint8, "r+", self.layout.starts[0], shape)
        self.kv.check_integrity([])

    def rest(self):
        """What the engine does while no request runs."""
        self.kept.after_step(self.kv)
        while self.kept.save_idle(self.kv, self.device.copy) is not None:
            pass
        self.kv.check_integrity([])
