"""The files for Ray on Kubernetes: of the right form, with arguments that the application and `core serve` take."""

import copy
import functools
import sys
import tomllib
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from core.version import __version__
from core_apis.server.service import FLUSH_SECONDS
from tests.deploy.test_manifests import (
    DEPLOY,
    ENGINE_END_S,
    KUBERNETES,
    VERSIONS,
    check,
    keys,
    needs_kubectl,
    rendered,
    schemas_are_read_once,
    values_of,
)
from tests.layout import ROOT

SERVICE = yaml.safe_load((KUBERNETES / "kuberay" / "ray-service.yaml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
(WORKERS,) = CLUSTER["workerGroupSpecs"]
(APPLICATION,) = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]

__all__ = ["schemas_are_read_once"]  # a fixture for all tests here


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """examples/ray_serve.py with decorators that do nothing in the place of Ray's."""
    unchanged = SimpleNamespace(
        deployment=lambda **options: lambda cls: cls, ingress=lambda: lambda cls: cls, Application=object
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=unchanged))
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "ray_serve", raising=False)
    module, _, _ = APPLICATION["import_path"].partition(":")
    return __import__(module)


def check_service(service: dict[str, Any]) -> None:
    """Raise ValidationError for a key that is not known, also in the pods."""
    check(service, VERSIONS[-1])
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for version in VERSIONS:
            check({"apiVersion": "v1", "kind": "Pod", **group["template"]}, version)
    container = {"name": "autoscaler", **cluster["autoscalerOptions"]}
    check(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}},
        VERSIONS[-1],
    )


@needs_kubectl
def test_the_rendered_files_are_valid() -> None:
    service, policy = sorted(rendered("../kuberay"), key=lambda resource: resource["kind"], reverse=True)
    check_service(service)
    check(policy, VERSIONS[0])
    assert service["metadata"]["namespace"] == policy["metadata"]["namespace"] == "core"
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= group["template"]["metadata"]["labels"].items()
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == f"core:{__version__}-ray"


def test_every_misspelled_key_is_found() -> None:
    check_service(SERVICE)
    for path in keys(SERVICE):
        if path[-2:-1] == ("rayStartParams",):  # any arguments of `ray start`
            continue
        wrong = copy.deepcopy(SERVICE)
        place = functools.reduce(lambda value, key: value[key], path[:-1], wrong)
        place[f"{path[-1]}s"] = place.pop(path[-1])
        with pytest.raises(jsonschema.ValidationError):
            check_service(wrong)


def test_the_application_takes_its_arguments(example: Any) -> None:
    assert APPLICATION["import_path"].partition(":")[2] == example.build.__name__
    settings = msgspec.convert(APPLICATION["args"], example.Settings)
    given = values_of(["serve", settings.model, *settings.arguments.split()])
    assert not given.keys() & set(example.REFUSED)
    assert given["platform_config"]["threads"] < settings.cpus, "a thread is left to the server"
    assert float(WORKERS["rayStartParams"]["num-cpus"]) == settings.cpus, "one replica a pod"
    assert WORKERS["maxReplicas"] == settings.max_replicas and WORKERS["minReplicas"] == settings.min_replicas
    pod = WORKERS["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_s + FLUSH_SECONDS + ENGINE_END_S


def test_the_image_has_the_ray_of_the_manifest() -> None:
    lines = (DEPLOY / "Containerfile.ray").read_text()
    assert f'"ray[serve]=={CLUSTER["rayVersion"]}"' in lines
    pods = [group["template"]["spec"] for group in (CLUSTER["headGroupSpec"], WORKERS)]
    assert lines.rstrip().endswith("USER {runAsUser}:{runAsGroup}".format_map(pods[0]["securityContext"]))
    assert pods[0]["securityContext"] == pods[1]["securityContext"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["ray"] == [f"ray[serve]>={CLUSTER['rayVersion'].rpartition('.')[0]}"]
