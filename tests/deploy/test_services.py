"""The unit of systemd and the configuration of nginx: valid, for arguments and paths that the server has, and of use."""

import re
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from core_apis.callers.access import ACCESS
from core_commands.cli.options import parse_engine_arguments
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.test_edges import make_certificate
from tests.layout import ROOT

UNIT = ROOT / "deploy" / "core.service"
NGINX = ROOT / "deploy" / "nginx.conf"
CERTIFICATE = "/etc/ssl/certs/models.pem"
KEY = "/etc/ssl/private/models.key"
MAIN = (
    "daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; include {folder}/site.conf; }}"
)


def unit_values(name: str) -> list[str]:
    """The values of a key, in the order of the file."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="the unit is read by systemd's own tool")
@pytest.mark.parametrize(("key", "is_known"), [("NoNewPrivileges", True), ("NoNewPriviliges", False)])
def test_systemd_knows_every_key(tmp_path: Path, key: str, is_known: bool) -> None:
    text = UNIT.read_text().replace("/opt/core/bin/core", "/bin/true").replace("NoNewPrivileges", key)
    unit = tmp_path / "core.service"
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    # It ends with 0 for a key that it ignores.
    assert (done.stdout + done.stderr == "") is is_known


def test_the_service_is_given_as_long_as_the_server_may_take() -> None:
    (command,) = unit_values("ExecStart")
    words = shlex.split(command)
    assert words[:2] == ["/opt/core/bin/core", "serve"]
    at = words.index("--config")
    parsed = parse_engine_arguments(words[2:at] + words[at + 2 :])
    assert (parsed.problems, parsed.warnings) == ([], [])
    engine_end_s = 5
    assert int(unit_values("TimeoutStopSec")[0]) > parsed.values["shutdown_timeout"].value + engine_end_s


def test_operators_paths_are_not_served_to_the_world() -> None:
    patterns = re.findall(r"location ~ (\S+) \{ return 404; \}", NGINX.read_text())
    for path, access in ACCESS.items():
        is_hidden = any(re.search(pattern, path) for pattern in patterns)
        assert is_hidden is (access == "operator" or path == "/metrics"), path


@pytest.fixture
def behind_nginx(tmp_path: Path) -> Iterator[tuple[str, RunningServer]]:
    """The address of nginx, and the server behind it."""
    key, certificate = make_certificate(tmp_path, "models.example.org")
    with run_server(ServerConfig(api_keys=("sesame",))) as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        text = NGINX.read_text().replace("127.0.0.1:8000", server.url.removeprefix("http://"))
        text = text.replace(CERTIFICATE, str(certificate)).replace(KEY, str(key))
        (tmp_path / "site.conf").write_text(text.replace("listen 443", f"listen 127.0.0.1:{port}"))
        (tmp_path / "main.conf").write_text(MAIN.format(folder=tmp_path))
        process = subprocess.Popen(["nginx", "-c", str(tmp_path / "main.conf"), "-p", str(tmp_path)])
        try:
            for _ in range(200):
                with socket.socket() as asked:
                    if asked.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"https://127.0.0.1:{port}", server
        finally:
            process.terminate()
            process.wait()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx reads its configuration")
def test_streams_pass_nginx_token_by_token(behind_nginx: tuple[str, RunningServer]) -> None:
    url, server = behind_nginx
    http = httpx.Client(verify=False)
    unverified = openai.DefaultHttpxClient(verify=False)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", http_client=unverified, max_retries=0)
    model = client.models.list().data[0]
    # Its fourth token never comes: whoever gathers the answer before it hands it on has nothing to show.
    stream = client.completions.create(model=model.id, prompt="STUCK", max_tokens=50, stream=True)
    assert next(iter(stream)).choices[0].text
    stream.close()
    server.wait_idle()
    operator = {"Authorization": "Bearer sesame"}
    assert http.post(f"{url}/sleep", headers=operator).status_code == 404
    assert http.get(f"{url}/health").status_code == 200
    http.close()
