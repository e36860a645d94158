"""The steps of deploy/Containerfile without a container engine, and a server in what they make: `python -m tests.deploy.image`.

Needs root. The build runs in a new directory with the files that .dockerignore lets through; steps that install Debian's
packages are left out. The server then runs as the image's user, on a root that is read-only but for /tmp and the cache.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from core_config.locating.default_model import default_model
from tests.apis.serving_processes import free_port
from tests.layout import ROOT

PYTHON = Path("/usr/bin/python3")
"""An interpreter that every user may run, as that of the image is."""
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
MOUNTS = re.compile(r"--mount=\S+\s+")
PLACES = ("/opt/core", "/dist", "/cache")
START_LIMIT_S = 300


def steps() -> Iterator[str]:
    """The RUN lines, without their mounts."""
    text = CONTAINERFILE.read_text().replace("\\\n", "")
    for line in text.splitlines():
        if line.startswith("RUN ") and "apt-get" not in line:
            yield MOUNTS.sub("", line.removeprefix("RUN ")).strip()


def copied(source: Path) -> None:
    """Copy what .dockerignore lets through."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    left_out = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines[1:] if line.startswith("**/")))
    for line in lines:
        if line.startswith("!"):
            path = ROOT / line[1:]
            if path.is_dir():
                shutil.copytree(path, source / path.name, ignore=left_out)
            else:
                shutil.copy(path, source)


def build(root: Path) -> None:
    """Run the steps, with the places of the image below `root`."""
    source = root / "source"
    source.mkdir()
    copied(source)
    tools = root / "bin"
    tools.mkdir()
    for name in ("python", "python3"):
        (tools / name).symlink_to(PYTHON)
    given = dict(re.findall(r"^ARG (\w+)=(.*)$", CONTAINERFILE.read_text(), re.MULTILINE))
    path = f"{tools}:{os.environ['PATH']}"
    environment = {**os.environ, **given, "TORCH_INDEX": "", "PATH": path}
    for step in steps():
        for place in PLACES:
            step = re.sub(rf"(?<![\w/]){place}\b", str(root) + place, step)
        print(f"RUN {step}", flush=True)
        subprocess.run(["sh", "-c", step], cwd=source, env=environment, check=True)
        if (source / "dist").exists() and not (root / "dist").exists():
            (source / "dist").rename(root / "dist")
    shutil.rmtree(source)


def user() -> int:
    """The user of the image."""
    return int(re.findall(r"^USER (\d+):\1$", CONTAINERFILE.read_text(), re.MULTILINE)[0])


def serve(root: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the server on a root that is read-only. Its model lies in /cache, where a download would put it."""
    number = user()
    shutil.copy(default_model(), root / "cache" / "model.gguf")
    inside = (
        f"mount --bind {root}/cache /mnt && mount --bind {root}/opt /opt && mount -o remount,ro,bind / && "
        "mount -t tmpfs -o mode=1777 tmpfs /tmp && "
        f"exec setpriv --reuid={number} --regid={number} --clear-groups --no-new-privs --bounding-set=-all "
        "env --ignore-environment HOME=/mnt PYTHONUNBUFFERED=1 PATH=/opt/core/bin:/usr/bin:/bin "
        f"sh -c 'cd /mnt && ! touch /opt/core/x 2>/dev/null && exec core serve /mnt/model.gguf --port {port} "
        "--shutdown-timeout 60 --kv-offloading-disk-path /mnt/kv --kv-offloading-disk-size 1'"
    )
    return subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", inside])


def try_out(root: Path) -> None:
    """Ask the server, end it, and look at what it has left."""
    port = free_port()
    process = serve(root, port)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
            try:
                if httpx.get(f"{url}/ready", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        question = [{"role": "user", "content": "What is the capital city of Japan?"}]
        answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": question, "temperature": 0}, timeout=120)
        assert "Tokyo" in answer.json()["choices"][0]["message"]["content"], answer.text
        process.terminate()
        assert process.wait(90) == 0
    finally:
        process.kill()
        process.wait()
    left = sorted(path.name for path in (root / "cache").iterdir())
    print(f"The server answered, ended with exit code 0, and left in its cache: {', '.join(left)}.")
    assert all(path.stat().st_uid == user() for path in (root / "cache" / "kv").rglob("*"))


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("tests.deploy.image: it mounts, and becomes another user; run it as root.")
    # /var, not /tmp, over which the server gets one of its own.
    with tempfile.TemporaryDirectory(prefix="core-image-", dir="/var/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        build(root)
        try_out(root)


if __name__ == "__main__":
    main()
