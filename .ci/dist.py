"""`python .ci/dist.py DIST`: makes the wheels and archives of a folder fit to be handed on.

Owns: the platform tag of the wheel with compiled kernels, which auditwheel decides by the symbols that they need; times and
owners in source archives, so that equal sources give equal bytes; the list of checksums. Never does: build. Called by:
`make dist`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
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


def settle(archive: Path, seconds: int) -> None:
    """Write a source archive anew, in the order of names, with these times and no owners: setuptools takes those of now."""
    with tarfile.open(archive) as read:
        members = sorted(read.getmembers(), key=lambda member: member.name)
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as written:
            for member in members:
                content = read.extractfile(member) if member.isfile() else None
                member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                written.addfile(member, content)
    archive.write_bytes(gzip.compress(held.getvalue(), mtime=seconds))


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
    for archive in sorted(dist.glob("*.tar.gz")):
        settle(archive, int(os.environ["SOURCE_DATE_EPOCH"]))
    print(write_checksums(dist))
