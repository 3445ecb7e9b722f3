from __future__ import annotations

from tests.servers.cockroachdb import CockroachCluster

collect_ignore = [] if CockroachCluster.backends() else ["test_cluster.py"]
"""`make cockroach` runs it."""
