"""The overlay's Spark settings with the real driver and real executors, whose pods are processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from astha.redaction import Redactor
from astha.subscribers.context import LakeSettings
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor import open_executor
from registry.embedded_postgres import free_port
from tests.deploy.kubernetes.test_manifests import VERSIONS, executor
from tests.deploy.kubernetes.test_policies import DAEMONS
from tests.deploy.kubernetes.workloads import Workload
from tests.lake import rows_of
from tests.parquet_files import PLAIN, row
from tests.servers.pods import PodServer
from tests.unit.components.compactor.merge import groups

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def compactor_settings(driver: Workload, directory: Path, server: PodServer) -> CompactorSettings:
    """The settings of the overlay, with the address and the free ports of this machine."""
    environment = driver.environment(directory)
    subscriptions = yaml.safe_load(Path(environment["ASTHA_SUBSCRIPTIONS"]).read_text())
    settings: dict[str, Any] = subscriptions["components"]["compactor"]["settings"]
    spark = settings["spark"]
    spark.update(master=f"k8s://{server.url}", host="127.0.0.1", port=free_port())
    options = spark["options"]
    template = options["spark.kubernetes.executor.podTemplateFile"]
    options["spark.kubernetes.executor.podTemplateFile"] = f"{directory}{template}"
    for name in ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port"):
        options[name] = free_port()
    options["spark.driver.extraJavaOptions"] = options["spark.executor.extraJavaOptions"] = QUICK
    options["spark.executor.memory"] = "512m"
    return CompactorSettings(**settings)


def verb(method: str, path: str) -> str:
    """Returns the verb of a role that allows the request; a watch needs one more."""
    one = not path.endswith("/pods")
    verbs = {"GET": ("list", "get"), "DELETE": ("deletecollection", "delete"), "POST": ("create",), "PATCH": ("patch",)}
    return verbs[method][min(one, len(verbs[method]) - 1)]


def check_requests(driver: Workload, server: PodServer) -> None:
    """The driver does nothing that its role does not allow."""
    namespace = driver.document["metadata"]["namespace"]
    assert {path for _, path in server.requests if not path.startswith(f"/api/v1/namespaces/{namespace}/pods")} == set()
    [role] = driver.of_kind("Role")
    assert {verb(*request) for request in server.requests} <= set(role["rules"][0]["verbs"])


def check_pods(driver: Workload, server: PodServer) -> None:
    """Executors have the template's restrictions, and go with their driver."""
    assert server.created
    for pod in server.created:
        kubernetes_validate.validate({"kind": "Pod", "apiVersion": "v1", **pod}, VERSIONS[-1], strict=True)
        template = executor()
        [container], [wanted] = pod["spec"]["containers"], template["spec"]["containers"]
        assert container["securityContext"] == wanted["securityContext"]
        assert pod["spec"]["securityContext"] == template["spec"]["securityContext"]
        assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
        assert pod["metadata"]["labels"].items() >= template["metadata"]["labels"].items(), "for network policies"
        assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == [f"{driver.name}-0"]
    assert list(server.pods) == [f"{driver.name}-0"], "the executors ended with their session"


async def test_files_are_merged_by_executors_in_pods(tmp_path: Path) -> None:
    [driver] = [workload for workload in DAEMONS if workload.document["kind"] == "StatefulSet"]
    (tmp_path / "pods").mkdir()
    async with PodServer(tmp_path / "pods", f"{driver.name}-0", {"PYTHONPATH": str(ROOT)}) as server:
        settings = compactor_settings(driver, tmp_path, server)
        rows = [rows_of(PLAIN, *(row(file * 3 + number) for number in range(3))) for file in range(4)]
        inputs = [groups.write(tmp_path / f"{file}.parquet", some, PLAIN) for file, some in enumerate(rows)]
        executor_on_spark = open_executor(settings.spark, LakeSettings(), Redactor())
        try:
            result = await executor_on_spark.merge(groups.task(tmp_path, inputs, PLAIN))
            live = executor_on_spark._sessions.live
            assert live is not None
            assert live.lease_address is not None, f"workers don't reach the worker lease: {server.log()}"
        finally:
            await executor_on_spark.close()
        assert result.proven
        assert sorted(groups.read(result)["id"].to_pylist()) == list(range(12))
        check_requests(driver, server)
        check_pods(driver, server)
