"""The rendered manifests are those of the sources, and Kubernetes knows every field of them."""

from __future__ import annotations

import copy
import json

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.deploy.kubernetes.manifests import BUILT, RENDERED, SOURCE, Document, build, find_kustomize, header, read

VERSIONS = ["1.29", "1.31", "1.33", "1.35", "1.36", "1.37"]
ENDPOINT = {"port", "path", "interval", "scrapeTimeout", "authorization"}
POD_MONITOR = {"selector", "podTargetLabels", "podMetricsEndpoints"}


def documents() -> list[Document]:
    """Returns all documents once, with the Secrets of the example and the template of Spark's executors."""
    found = [document for name in BUILT for document in read(name)]
    found += yaml.safe_load_all((SOURCE / "secrets.example.yaml").read_text())
    found.append(executor())
    return [json.loads(text) for text in dict.fromkeys(json.dumps(document) for document in found)]


def executor() -> Document:
    maps = [document for document in read("spark-on-kubernetes") if document["kind"] == "ConfigMap"]
    [template] = [document["data"]["executor.yaml"] for document in maps if "executor.yaml" in document["data"]]
    found: Document = yaml.safe_load(template)
    return found


@pytest.mark.parametrize("name", BUILT)
def test_the_rendered_file_is_current(name: str) -> None:
    text = (RENDERED / f"{name}.yaml").read_text()
    assert text.startswith(header(name)), f"the sources of {name} changed: run `make manifests`"
    kustomize = find_kustomize()
    if kustomize is not None:
        assert list(yaml.safe_load_all(build(kustomize, BUILT[name]))) == read(name), "run `make manifests`"


def test_every_rendered_file_has_a_source() -> None:
    assert {path.stem for path in RENDERED.iterdir()} == set(BUILT)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(version: str) -> None:
    for document in documents():
        if document["kind"] != "PodMonitor":
            kubernetes_validate.validate(document, version, strict=True)


def test_the_newest_schemas_are_used() -> None:
    assert VERSIONS[-1] == ".".join(kubernetes_validate.latest_version().split(".")[:2])


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_unknown_fields_and_wrong_types_are_refused(version: str) -> None:
    [deployment] = [document for document in read("single") if document["kind"] == "Deployment"]
    for path, value in (("replica", 1), ("replicas", "two"), ("strategy", {"type": "RollingUpdate", "surge": 1})):
        wrong = copy.deepcopy(deployment)
        wrong["spec"][path] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


def test_pod_monitors_have_only_fields_of_the_operator() -> None:
    """Kubernetes' schemas do not contain it; its fields are those of monitoring.coreos.com/v1."""
    [monitor] = [document for document in read("ha-monitored") if document["kind"] == "PodMonitor"]
    assert set(monitor["spec"]) <= POD_MONITOR
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert set(endpoint) <= ENDPOINT
    assert set(endpoint["authorization"]) == {"type", "credentials"}
    assert set(endpoint["authorization"]["credentials"]) == {"name", "key"}
