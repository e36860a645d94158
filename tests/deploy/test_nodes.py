"""The files for one engine on several machines of Kubernetes: of the right form, with commands that meet each other."""

import copy
import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from core.api.errors import ConfigError
from core.version import __version__
from core_apis.server.service import FLUSH_SECONDS
from core_supervision.link.secured import read_secret
from tests.deploy.test_manifests import (
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

SET = yaml.safe_load((KUBERNETES / "nodes" / "leader-worker-set.yaml").read_text())
TEMPLATES = SET["spec"]["leaderWorkerTemplate"]
PODS = [TEMPLATES["leaderTemplate"], TEMPLATES["workerTemplate"]]
OF_THE_FRONT = {"host", "port", "shutdown_timeout"}

__all__ = ["schemas_are_read_once"]  # a fixture for all tests here


def check_set(resource: dict[str, Any]) -> None:
    """Raise ValidationError for a key that is not known, also in the pods."""
    check(resource, VERSIONS[-1])
    for name in ("leaderTemplate", "workerTemplate"):
        for version in VERSIONS:
            check({"apiVersion": "v1", "kind": "Pod", **resource["spec"]["leaderWorkerTemplate"][name]}, version)


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def values(template: dict[str, Any], index: int) -> dict[str, Any]:
    """What the command reads once the operator's variables are filled in."""
    variables = {"$(LWS_LEADER_ADDRESS)": "core-nodes-0.core-nodes.core", "$(LWS_WORKER_INDEX)": str(index)}
    arguments = []
    for argument in container_of(template)["args"]:
        for name, value in variables.items():
            argument = argument.replace(name, value)
        assert "$(" not in argument, "the operator sets no other variables"
        arguments.append(argument)
    return values_of(arguments)


@needs_kubectl
def test_the_rendered_files_are_valid() -> None:
    found = {resource["kind"]: resource for resource in rendered("../nodes")}
    assert set(found) == {"LeaderWorkerSet", "Service", "NetworkPolicy"}
    check_set(found["LeaderWorkerSet"])
    for kind in ("Service", "NetworkPolicy"):
        check(found[kind], VERSIONS[0])
    assert {resource["metadata"]["namespace"] for resource in found.values()} == {"core"}
    templates = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    for name, index in (("leaderTemplate", "0"), ("workerTemplate", "1")):
        labels = templates[name]["metadata"]["labels"] | {"leaderworkerset.sigs.k8s.io/worker-index": index}
        policy = found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= labels.items()
        is_served = found["Service"]["spec"]["selector"].items() <= labels.items()
        assert is_served == (name == "leaderTemplate"), "the leader alone answers requests"
        pod = templates[name]["spec"]
        assert {each["image"] for each in (*pod["containers"], *pod["initContainers"])} == {f"core:{__version__}"}


def test_every_misspelled_key_is_found() -> None:
    check_set(SET)
    for path in keys(SET):
        wrong = copy.deepcopy(SET)
        place = functools.reduce(lambda value, key: value[key], path[:-1], wrong)
        place[f"{path[-1]}s"] = place.pop(path[-1])
        with pytest.raises(jsonschema.ValidationError):
            check_set(wrong)


def test_all_nodes_have_the_arguments_of_one_engine() -> None:
    leader, worker = values(PODS[0], 0), values(PODS[1], 1)
    size = TEMPLATES["size"]
    assert (leader.pop("node_rank"), worker.pop("node_rank")) == (0, 1)
    assert {name: value for name, value in leader.items() if name not in OF_THE_FRONT} == worker
    assert leader["nnodes"] == size
    ranks = leader.get("tensor_parallel_size", 1) * leader["pipeline_parallel_size"]
    assert ranks % size == 0, "each node has equally many ranks"
    assert PODS[0]["spec"]["terminationGracePeriodSeconds"] >= leader["shutdown_timeout"] + FLUSH_SECONDS + ENGINE_END_S


def test_the_key_that_is_copied_is_one_that_the_server_takes(tmp_path: Path) -> None:
    """A Secret's file as the kubelet makes it, for the pod's group to read, is refused; the copy is not."""
    for template in PODS:
        assert values(template, 1)["engine_key_file"] == "/key/engine-key"
        mounts = {mount["mountPath"]: mount["name"] for mount in container_of(template)["volumeMounts"]}
        (copying,) = template["spec"]["initContainers"]
        copied = {mount["mountPath"]: mount["name"] for mount in copying["volumeMounts"]}
        assert mounts["/key"] == copied["/key"]
    secret, copy_of_it = tmp_path / "secret", tmp_path / "key"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o440)
    with pytest.raises(ConfigError, match="others may use it"):
        read_secret(str(secret))
    paths = {"/secret/engine-key": str(secret), "/key/engine-key": str(copy_of_it)}
    subprocess.run([paths.get(word, word) for word in copying["command"]], check=True, env={"PATH": os.environ["PATH"]})
    assert len(read_secret(str(copy_of_it))) == 32
