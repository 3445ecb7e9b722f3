"""Rules for every pod: no privileges, limits, probes, a network policy, time to stop, references that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from astha.cli.exit_codes import Exit
from tests.deploy.kubernetes.manifests import BUILT, SOURCE, Document, read
from tests.deploy.kubernetes.test_manifests import executor
from tests.deploy.kubernetes.workloads import Workload, secrets, selects, workloads

ALL = [workload for name in BUILT for workload in workloads(name)]
DAEMONS = [workload for workload in ALL if workload.is_daemon]
SERVERS = [workload for workload in ALL if workload.is_server]
TWICE = [workload for workload in SERVERS if workload.document["spec"]["replicas"] > 1]
DAEMON_PORT = 27840
TAGGED = re.compile(r"^[a-z0-9./:_-]+:[0-9]+\.[0-9]+\.[0-9]+$")

every_pod = pytest.mark.parametrize("workload", ALL, ids=str)
every_daemon = pytest.mark.parametrize("workload", DAEMONS, ids=str)
every_server = pytest.mark.parametrize("workload", SERVERS, ids=str)


def test_the_overlays_have_these_workloads() -> None:
    found = {name: sorted(f"{each.document['kind']} {each.name}" for each in workloads(name)) for name in BUILT}
    one = ["Deployment astha"]
    assert found == {
        "migration": ["Job astha-migrate"],
        "single": one,
        "ha": one,
        "ha-monitored": ["CronJob astha-verify", *one],
        "split": [
            "Deployment astha",
            "Deployment astha-catalog",
            "Deployment astha-compactor",
            "Deployment astha-sinks",
        ],
        "spark-on-kubernetes": ["Deployment astha", "StatefulSet astha-compactor"],
    }


@every_pod
def test_images_have_a_version(workload: Workload) -> None:
    for container in workload.containers:
        assert TAGGED.match(container["image"]), container["image"]
        assert container["imagePullPolicy"] == "IfNotPresent"


@every_pod
def test_containers_have_requests_and_limits(workload: Workload) -> None:
    for container in workload.containers:
        for part in ("requests", "limits"):
            assert set(container["resources"][part]) == {"cpu", "memory", "ephemeral-storage"}


def hardened(pod: Document, containers: list[Document]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert all(set(volume) <= {"name", "secret", "configMap", "emptyDir"} for volume in pod["volumes"])
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)


@every_pod
def test_pods_have_no_privileges(workload: Workload) -> None:
    hardened(workload.pod, workload.containers)


def test_executors_have_no_privileges() -> None:
    pod = executor()["spec"]
    hardened(pod, pod["containers"])
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", BUILT)
def test_the_namespace_admits_only_restricted_pods(name: str) -> None:
    [namespace] = [document for document in read(name) if document["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    named = {document["metadata"].get("namespace") for document in read(name) if document["kind"] != "Namespace"}
    assert named == {namespace["metadata"]["name"]}


@every_pod
def test_a_token_is_mounted_only_where_a_role_needs_it(workload: Workload) -> None:
    account = workload.pod.get("serviceAccountName")
    bound = {subject["name"] for binding in workload.of_kind("RoleBinding") for subject in binding["subjects"]}
    assert workload.pod["automountServiceAccountToken"] is (account in bound)
    for role in workload.of_kind("Role"):
        assert [(rule["apiGroups"], rule["resources"]) for rule in role["rules"]] == [([""], ["pods"])]


@every_server
def test_probes(workload: Workload) -> None:
    [container] = workload.pod["containers"]
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    # A rollout of a Deployment starts a pod that stands by first, so it must be ready then. Catalogs do not stand by.
    stands_by = workload.is_daemon and workload.document["kind"] == "Deployment"
    wanted = "/readyz?standby=ready" if stands_by else "/readyz"
    assert container["readinessProbe"]["httpGet"] == {"path": wanted, "port": "http"}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["timeoutSeconds"] > 5, "the listener waits 5 s for the event loop"
    assert "lifecycle" not in container, "SIGTERM is enough: no preStop hook delays the release of the lease"


@every_server
def test_a_new_pod_is_ready_before_an_old_one_stops(workload: Workload) -> None:
    if workload.document["kind"] == "Deployment":
        rolling = workload.document["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    else:
        assert workload.document["spec"]["replicas"] == 1


@every_daemon
def test_a_restarted_container_finds_the_lock_of_its_predecessor(workload: Workload) -> None:
    [container] = workload.pod["containers"]
    [settings] = [source["configMapRef"]["name"] for source in container["envFrom"]]
    directory = workload.config_map(settings)["ASTHA_LEASE__DIRECTORY"]
    [volume] = [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == directory]
    assert [each for each in workload.pod["volumes"] if each["name"] == volume and "emptyDir" in each]


def test_these_have_two_replicas() -> None:
    assert [str(workload) for workload in TWICE] == [
        "ha: Deployment astha",
        "ha-monitored: Deployment astha",
        "spark-on-kubernetes: Deployment astha",
        "split: Deployment astha",
        "split: Deployment astha-catalog",
    ]


@pytest.mark.parametrize("workload", TWICE, ids=str)
def test_two_replicas_on_two_nodes(workload: Workload) -> None:
    assert workload.document["spec"]["replicas"] == 2
    terms = workload.pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert {term["podAffinityTerm"]["topologyKey"] for term in terms} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    assert all(_chosen(workload, term["podAffinityTerm"]["labelSelector"]) == [workload.name] for term in terms)
    budgets = [
        budget
        for budget in workload.of_kind("PodDisruptionBudget")
        if selects(budget["spec"]["selector"], workload.labels)
    ]
    assert [budget["spec"]["maxUnavailable"] for budget in budgets] == [1]
    assert _chosen(workload, budgets[0]["spec"]["selector"]) == [workload.name]


def _chosen(workload: Workload, selector: Document) -> list[str]:
    """Returns the workloads of the same manifest that the selector selects."""
    return [each.name for each in workloads(workload.manifest) if selects(selector, each.labels)]


@every_pod
def test_selectors_match_one_workload(workload: Workload) -> None:
    if workload.is_server:
        assert selects(workload.document["spec"]["selector"], workload.labels)
        others = [each for each in workloads(workload.manifest) if each.name != workload.name]
        assert not [each.name for each in others if selects(workload.document["spec"]["selector"], each.labels)]
    for service in workload.of_kind("Service"):
        targets = [
            each
            for each in workloads(workload.manifest)
            if selects({"matchLabels": service["spec"]["selector"]}, each.labels)
        ]
        assert [each.name for each in targets] == [service["metadata"]["name"]]
        ports = {port["name"] for port in targets[0].pod["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@every_pod
def test_network_policies_select_every_pod_in_both_directions(workload: Workload) -> None:
    policies = list(workload.of_kind("NetworkPolicy"))
    everything = [policy for policy in policies if policy["spec"]["podSelector"] == {}]
    assert [(policy["spec"]["policyTypes"], set(policy["spec"])) for policy in everything] == [
        (["Ingress", "Egress"], {"podSelector", "policyTypes"})
    ]
    own = [
        policy
        for policy in policies
        if policy not in everything and selects(policy["spec"]["podSelector"], workload.labels)
    ]
    assert own, "nothing is allowed, not even DNS"
    incoming = {port["port"] for policy in own for rule in policy["spec"].get("ingress", []) for port in rule["ports"]}
    assert all("from" in rule for policy in own for rule in policy["spec"].get("ingress", []))
    listens = {port["containerPort"] for port in workload.pod["containers"][0].get("ports", [])}
    assert incoming - {DAEMON_PORT} <= listens, "the policy of the namespace has a daemon's port for every pod"
    outgoing = {port["port"] for policy in own for rule in policy["spec"].get("egress", []) for port in rule["ports"]}
    assert {53, 5432} <= outgoing


def test_a_verification_is_not_repeated_for_a_difference() -> None:
    [verification] = [workload for workload in ALL if workload.document["kind"] == "CronJob"]
    job = verification.document["spec"]["jobTemplate"]["spec"]
    [rule] = job["podFailurePolicy"]["rules"]
    wanted = {"containerName": "verify", "operator": "In", "values": [Exit.PROBLEM, Exit.USAGE]}
    assert (rule["action"], rule["onExitCodes"]) == ("FailJob", wanted)
    assert verification.document["spec"]["concurrencyPolicy"] == "Forbid"
    [policy] = [each for each in verification.of_kind("NetworkPolicy") if each["metadata"]["name"] == verification.name]
    assert "ingress" not in policy["spec"]


def references(workload: Workload) -> Iterator[tuple[str, str]]:
    for volume in workload.pod["volumes"]:
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
    for container in workload.containers:
        for source in container.get("envFrom", []):
            assert set(source) == {"configMapRef"}, "secrets are files"
            yield "ConfigMap", source["configMapRef"]["name"]
        assert all("value" in variable for variable in container.get("env", []))
    if "serviceAccountName" in workload.pod:
        yield "ServiceAccount", workload.pod["serviceAccountName"]
    if "serviceName" in workload.document["spec"]:
        yield "Service", workload.document["spec"]["serviceName"]


@every_pod
def test_everything_that_is_referred_to_exists(workload: Workload) -> None:
    there = {(document["kind"], document["metadata"]["name"]) for document in workload.documents}
    for kind, name in references(workload):
        if kind == "Secret":
            assert name in secrets()
            assert f"`{name}`" in (SOURCE / "README.md").read_text()
        else:
            assert (kind, name) in there


def test_the_pod_monitor_finds_daemons_and_their_read_token() -> None:
    [leader] = [workload for workload in workloads("ha-monitored") if workload.is_daemon]
    [monitor] = leader.of_kind("PodMonitor")
    assert selects(monitor["spec"]["selector"], leader.labels)
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in secrets()[credentials["name"]]
    assert endpoint["port"] in {port["name"] for port in leader.pod["containers"][0]["ports"]}
