"""What other programs see: Iceberg snapshots, and rows read by DuckDB."""

from __future__ import annotations

from deploy.demo.claims import notes, prints, same
from deploy.demo.machine import listens
from deploy.demo.story import Addresses, Chapter, Service, Step


def chapter(addresses: Addresses) -> Chapter:
    return Chapter(
        "iceberg",
        "Iceberg snapshots appear, and DuckDB reads them",
        "The daemon sees each transaction within milliseconds; its Iceberg updater commits a snapshot.\n"
        "`astha catalog` serves the tables to every engine, by Iceberg's REST protocol.\n"
        "DuckDB's extension is installed here; elsewhere, `INSTALL iceberg` fetches it once.",
        (
            Service("astha catalog", "catalog.log", lambda _log: listens(addresses.catalog), most_lines=0),
            Step(
                f"""\
python - <<'END'
from pyiceberg.catalog import load_catalog

orders = load_catalog("lake", type="rest", uri="{addresses.catalog_url}").load_table("shop.orders")
for snapshot in orders.snapshots():
    print(snapshot.snapshot_id, snapshot.summary.operation.value, snapshot.summary["total-records"], "rows")
END""",
                (prints(" 3000 rows", "The last snapshot has all rows of all writers."),),
                until=True,
            ),
            Step(
                f"""\
python - <<'END'
import duckdb

lake = duckdb.connect()
lake.execute("LOAD iceberg")
lake.execute("ATTACH 'lake' (TYPE iceberg, ENDPOINT '{addresses.catalog_url}', AUTHORIZATION_TYPE 'none')")
lake.sql("SELECT region, count(*) AS orders, sum(amount) AS amount FROM lake.shop.orders GROUP BY region").show()
END""",
                (
                    notes("orders of a region", r"eu\s*│\s*(\d+)"),
                    same(
                        "orders of a region",
                        r"us\s*│\s*(\d+)",
                        "DuckDB finds the same number of orders in both regions",
                    ),
                ),
            ),
        ),
    )
