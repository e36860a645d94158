"""The files in deploy/: of the right form for Kubernetes, with arguments that `core serve` takes and paths that it serves."""

import copy
import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from core.commands.main import main
from core_apis.callers.access import ACCESS
from core_apis.server.service import FLUSH_SECONDS
from core_commands.cli.options import parse_engine_arguments
from tests.deploy.custom_resources import SCHEMAS
from tests.layout import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
BASE = sorted(set((KUBERNETES / "base").glob("*.yaml")) - {KUBERNETES / "base" / "kustomization.yaml"})
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
VERSIONS = ("1.30", "1.37")
"""The oldest Kubernetes that the manifests are for (`preStop.sleep` is on by default there), and the newest that is known."""
ENGINE_END_S = 5
"""Seconds that an engine may take to save its cache, see docs/processes.md."""
VARIABLES = {"CORE_API_KEY", "CORE_ADMIN_API_KEY"}

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="overlays are rendered by kubectl")


@pytest.fixture(autouse=True, scope="module")
def schemas_are_read_once() -> Iterator[None]:
    """They are megabytes, and would be read again for each resource."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", read)
        yield


def check(resource: dict[str, Any], version: str) -> None:
    """Raise ValidationError for a resource that the API would refuse, or of which it would ignore a key."""
    own = SCHEMAS.get((resource["apiVersion"], resource["kind"]))
    if own is not None:
        jsonschema.validate(resource, own)
    else:
        kubernetes_validate.validate(resource, version, strict=True)


@functools.cache
def rendered(overlay: str) -> tuple[dict[str, Any], ...]:
    """All resources of an overlay."""
    command = ["kubectl", "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def one(resources: tuple[dict[str, Any], ...], kind: str) -> dict[str, Any]:
    (found,) = (resource for resource in resources if resource["kind"] == kind)
    return found


def pod_of(resources: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return one(resources, "Deployment")["spec"]["template"]["spec"]


def base() -> tuple[dict[str, Any], ...]:
    return tuple(yaml.safe_load(path.read_text()) for path in BASE)


def values_of(arguments: list[str]) -> dict[str, Any]:
    """What `core serve` reads from a container's arguments."""
    assert arguments[0] == "serve"
    parsed = parse_engine_arguments(arguments[1:])
    assert (parsed.problems, parsed.warnings) == ([], [])
    return {name: given.value for name, given in parsed.values.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_base_is_valid(version: str) -> None:
    for resource in base():
        check(resource, version)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_are_valid(overlay: str) -> None:
    for resource in rendered(overlay):
        assert resource.get("metadata", {}).get("namespace", "core") == "core"
        for version in VERSIONS:
            check(resource, version)


def keys(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all keys that the API, not the user, has named."""
    found: list[tuple[Any, ...]] = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict) and key not in ("kind", "apiVersion") and path[-1:] not in FREE:
            found.append((*path, key))
        found += keys(inner, (*path, key))
    return found


FREE = (("labels",), ("matchLabels",), ("selector",), ("limits",), ("requests",))
"""The keys of a map with any keys."""


def test_every_misspelled_key_is_found() -> None:
    monitor = yaml.safe_load((KUBERNETES / "components/metrics/service-monitor.yaml").read_text())
    for resource in (*base(), monitor):
        for path in keys(resource):
            wrong = copy.deepcopy(resource)
            place = functools.reduce(lambda value, key: value[key], path[:-1], wrong)
            place[f"{path[-1]}s"] = place.pop(path[-1])
            with pytest.raises(jsonschema.ValidationError):
                check(wrong, VERSIONS[-1])


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_takes_every_argument_and_serves_every_probe(overlay: str) -> None:
    pod = pod_of(rendered(overlay))
    (container,) = pod["containers"]
    values = values_of(container["args"])
    (port,) = container["ports"]
    assert (values["host"], values["port"]) == ("0.0.0.0", port["containerPort"])
    assert one(rendered(overlay), "Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    paths = {name: probe["path"].removesuffix("?look") for name, probe in probes.items()}
    assert paths == {"startup": "/live", "readiness": "/ready", "liveness": "/live"}
    assert all(ACCESS[path] == "public" for path in paths.values()), "a probe has no key"
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    variables = {entry["name"] for entry in container["env"]}
    assert {name for name in variables if name.startswith("CORE_")} <= VARIABLES
    assert pod["enableServiceLinks"] is False, "a service named core sets CORE_PORT and the like"


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_the_time_that_its_end_takes(overlay: str) -> None:
    pod = pod_of(rendered(overlay))
    (container,) = pod["containers"]
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = values_of(container["args"])["shutdown_timeout"]
    assert pod["terminationGracePeriodSeconds"] >= wait + drain + FLUSH_SECONDS + ENGINE_END_S


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_may_do_little(overlay: str) -> None:
    resources = rendered(overlay)
    pod = pod_of(resources)
    (container,) = pod["containers"]
    may = container["securityContext"]
    assert (
        may["readOnlyRootFilesystem"] and not may["allowPrivilegeEscalation"] and may["capabilities"]["drop"] == ["ALL"]
    )
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/cache", "/tmp"]
    labels = one(resources, "Deployment")["spec"]["template"]["metadata"]["labels"]
    policy = one(resources, "NetworkPolicy")["spec"]
    budget = one(resources, "PodDisruptionBudget")["spec"]
    service = one(resources, "Service")["spec"]
    for chosen in (policy["podSelector"]["matchLabels"], budget["selector"]["matchLabels"], service["selector"]):
        assert chosen and chosen.items() <= labels.items()
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"core-client": "true"}}}]


@needs_kubectl
def test_what_the_overlays_add() -> None:
    gpu = pod_of(rendered("gpu"))["containers"][0]
    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == "1" and values_of(gpu["args"])["device"] == "cuda"
    engines, single = (pod_of(rendered(name))["containers"][0] for name in ("data-parallel", "single"))
    count = values_of(engines["args"])["data_parallel_size"]
    assert count == 2 and values_of(engines["args"]).items() > values_of(single["args"]).items()
    for kind in ("requests", "limits"):
        of_one, of_all = single["resources"][kind], engines["resources"][kind]
        assert of_one.keys() == of_all.keys()
        for name, amount in of_one.items():
            number, unit = amount.removesuffix("Gi"), "Gi" if amount.endswith("Gi") else ""
            assert of_all[name] == f"{count * int(number)}{unit}", "each engine has what a single one has"
    kept = pod_of(rendered("persistent-kv"))
    (claim,) = (volume for volume in kept["volumes"] if "persistentVolumeClaim" in volume)
    assert claim["name"] == kept["containers"][0]["volumeMounts"][0]["name"]
    path = Path(values_of(kept["containers"][0]["args"])["kv_offloading_disk_path"])
    assert path.parent == Path("/cache"), "below the volume, whose root others may write to"
    assert one(rendered("persistent-kv"), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    monitor = one(rendered("metrics"), "ServiceMonitor")["spec"]
    service = one(rendered("metrics"), "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert len(one(rendered("metrics"), "NetworkPolicy")["spec"]["ingress"]) == 2


def test_compose_asks_for_what_the_server_takes() -> None:
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    drain = values_of(service["command"])["shutdown_timeout"]
    assert int(service["stop_grace_period"].removesuffix("s")) >= drain + FLUSH_SECONDS + ENGINE_END_S
    assert service["build"]["dockerfile"] == (DEPLOY / "Containerfile").relative_to(ROOT).as_posix()
    assert "127.0.0.1:8000/ready" in service["healthcheck"]["test"][-1] and service["read_only"] is True


def test_what_runs_beside_the_server_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    folder = DEPLOY / "monitoring"
    beside = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for other in beside.values():
        for volume in other["volumes"]:
            source, _, mode = volume.partition(":")[0], *volume.rpartition(":")[1:]
            assert not source.startswith(".") or (
                (DEPLOY / source).exists() and mode == "ro"
            )  # of the first file's folder
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"core:{service['ports'][0].rpartition(':')[2]}"]
    assert ACCESS[job["metrics_path"]] == "public"
    (source,) = yaml.safe_load((folder / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in beside
    (provider,) = yaml.safe_load((folder / "provider.yaml").read_text())["providers"]
    assert any(volume.split(":")[1] == provider["options"]["path"] for volume in beside["grafana"]["volumes"])
    for flags, name in (([], "dashboards/core.json"), (["--perses"], "perses.json")):
        assert main(["dashboard", *flags]) == 0
        kept = (folder / name).read_text()
        assert kept == capsys.readouterr().out, f"run: core dashboard {' '.join(flags)} > deploy/monitoring/{name}"


def test_the_image_is_that_of_the_manifests() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    pod = pod_of(base())["securityContext"]
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}" in lines
    assert not any("smollm" in line for line in lines), "no weights are in it"
    names = {line.strip("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in names)
