"""`python .ci/dist.py DIST`: makes the wheels and archives of a folder fit to be handed on.

Owns: the platform tag of the wheel with compiled kernels, which auditwheel decides by the symbols that they need, and the list
of checksums. Never does: build. Called by: `make dist`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKSUMS = "SHA256SUMS"


def tag(wheel: Path) -> Path:
    """Replace a wheel for this machine alone by one for all machines with its C library or a newer one. Return it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", folder, str(wheel)]
        subprocess.run(command, check=True)
        (made,) = Path(folder).glob("*.whl")
        target = wheel.with_name(made.name)
        target.write_bytes(made.read_bytes())
    if target != wheel:
        wheel.unlink()
    return target


def write_checksums(folder: Path) -> Path:
    """Write the checksums of all files, in the form of `sha256sum --check`."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    target = folder / CHECKSUMS
    target.write_text("".join(lines), encoding="utf-8")
    return target


if __name__ == "__main__":
    dist = Path(sys.argv[1])
    for wheel in sorted(dist.glob("*-linux_*.whl")):
        print(tag(wheel).name)
    print(write_checksums(dist))
