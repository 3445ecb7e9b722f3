"""What the rendered manifests contain, as the checks need it: pods, their settings and their subscriptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubernetes.manifests import SOURCE, Document, read

_MOUNTED = "/etc/astha"


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet, Job or CronJob, and the manifest that it belongs to."""

    manifest: str
    documents: list[Document]
    document: Document

    def __str__(self) -> str:
        return f"{self.manifest}: {self.document['kind']} {self.name}"

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self._template["metadata"]["labels"]
        return found

    @property
    def pod(self) -> Document:
        found: Document = self._template["spec"]
        return found

    @property
    def _template(self) -> Document:
        spec: Document = self.document["spec"]
        found: Document = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]
        return found

    @property
    def containers(self) -> list[Document]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def is_daemon(self) -> bool:
        return bool(self.pod["containers"][0]["command"] == ["astha", "run"])

    @property
    def is_server(self) -> bool:
        """Whether it runs until it is stopped: a daemon, or the catalog."""
        return self.document["kind"] in ("Deployment", "StatefulSet")

    def of_kind(self, kind: str) -> Iterator[Document]:
        return (document for document in self.documents if document["kind"] == kind)

    def config_map(self, name: str) -> dict[str, str]:
        found: dict[str, str] = next(
            document["data"] for document in self.of_kind("ConfigMap") if document["metadata"]["name"] == name
        )
        return found

    def environment(self, directory: Path) -> dict[str, str]:
        """Returns the variables of its first container, with the files of its volumes below `directory`."""
        container = self.pod["containers"][0]
        found = {name: value for source in container.get("envFrom", []) for name, value in self._all_of(source)}
        found.update({variable["name"]: variable["value"] for variable in container.get("env", [])})
        self._write_volumes(container, directory)
        return {name: value.replace(_MOUNTED, f"{directory}{_MOUNTED}") for name, value in found.items()}

    def _all_of(self, source: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        yield from self.config_map(source["configMapRef"]["name"]).items()

    def _write_volumes(self, container: Document, directory: Path) -> None:
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in container["volumeMounts"]:
            volume, target = volumes[mount["name"]], directory / mount["mountPath"].lstrip("/")
            if "secret" in volume:
                _write(target, secrets()[volume["secret"]["secretName"]])
            elif "configMap" in volume:
                _write(target, self.config_map(volume["configMap"]["name"]))


def _write(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(content)


@cache
def secrets() -> dict[str, dict[str, str]]:
    """Returns the Secrets that an operator has to create, with the values of the example."""
    documents = yaml.safe_load_all((SOURCE / "secrets.example.yaml").read_text())
    return {document["metadata"]["name"]: document["stringData"] for document in documents}


def workloads(manifest: str) -> list[Workload]:
    documents = read(manifest)
    return [
        Workload(manifest, documents, document)
        for document in documents
        if document["kind"] in ("Deployment", "StatefulSet", "Job", "CronJob")
    ]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """An empty selector selects all. Other expressions than labels are not used here."""
    assert set(selector) <= {"matchLabels"}, selector
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
