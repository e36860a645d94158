"""Schemas of resources that Kubernetes does not define itself: of each, the fields that deploy/ uses."""

from typing import Any

TEXT = {"type": "string"}


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LABELS = {"type": "object", "additionalProperties": TEXT}
METADATA = {**closed({"name": TEXT, "labels": LABELS, "namespace": TEXT}), "required": ["name"]}

NUMBER = {"type": "integer", "minimum": 0}
GROUP = {"rayStartParams": {"type": "object", "additionalProperties": TEXT}, "template": {"type": "object"}}
"""A group of a Ray cluster; its template is checked as a pod."""

NODE = closed({"metadata": closed({"labels": LABELS}), "spec": {"type": "object"}})
"""A pod of a LeaderWorkerSet; it is checked as a pod as well."""

SCHEMAS = {
    ("ray.io/v1", "RayService"): closed(
        {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": METADATA,
            "spec": closed(
                {
                    "serveConfigV2": TEXT,
                    "rayClusterConfig": closed(
                        {
                            "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                            "authOptions": closed({"mode": {"enum": ["token", "disabled"]}}),
                            "enableInTreeAutoscaling": {"type": "boolean"},
                            "autoscalerOptions": closed({"securityContext": {"type": "object"}}),
                            "headGroupSpec": closed(GROUP),
                            "workerGroupSpecs": {
                                "type": "array",
                                "items": closed(
                                    GROUP
                                    | {
                                        "groupName": TEXT,
                                        "replicas": NUMBER,
                                        "minReplicas": NUMBER,
                                        "maxReplicas": NUMBER,
                                    }
                                ),
                            },
                        }
                    ),
                }
            ),
        }
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): closed(
        {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": METADATA,
            "spec": closed(
                {
                    "replicas": NUMBER,
                    "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                    "leaderWorkerTemplate": closed(
                        {
                            "size": {"type": "integer", "minimum": 1},
                            "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "None"]},
                            "leaderTemplate": NODE,
                            "workerTemplate": NODE,
                        }
                    ),
                }
            ),
        }
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): closed(
        {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": METADATA,
            "spec": closed(
                {
                    "selector": closed({"matchLabels": LABELS}),
                    "endpoints": {
                        "type": "array",
                        "items": closed(
                            {
                                "port": TEXT,
                                "path": TEXT,
                                "interval": {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
                            }
                        ),
                    },
                }
            ),
        }
    ),
}
"""By API version and kind."""
