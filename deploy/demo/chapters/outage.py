"""A component that can't do its work, and its recovery."""

from __future__ import annotations

from deploy.demo.claims import lacks, prints
from deploy.demo.story import Chapter, Step

INSERT = """echo '{"id": 9001, "region": "eu", "amount": 9.9}' | astha insert shop.orders - --format json"""


def chapter() -> Chapter:
    return Chapter(
        "outage",
        "Something breaks, and recovers",
        "The storage of the table's Iceberg metadata goes away: a file now takes the place of its directory.",
        (
            Step("mv warehouse/shop/orders/metadata aside && touch warehouse/shop/orders/metadata"),
            Step(INSERT, (prints("shop.orders: 1 row ", "Inserts go on: the registry is the source of truth."),)),
            Step(
                "astha status",
                (
                    prints(
                        "iceberg_updater: shop.orders",
                        "The Iceberg updater can't work, and says why. All others go on.",
                    ),
                    prints("its storage does not answer"),
                ),
                until=True,
            ),
            Step(
                "astha verify shop.orders",
                (
                    prints("different: 1 of 1 table"),
                    prints("repair: ", "`verify` reports the table, with the cause and the remedy."),
                ),
                status=1,
            ),
            Step("rm warehouse/shop/orders/metadata && mv aside warehouse/shop/orders/metadata"),
            Step("astha refresh iceberg_updater"),
            Step(
                "astha status",
                (
                    prints("ready     yes"),
                    lacks("its storage does not answer", "It has read the registry again, and works."),
                ),
                until=True,
            ),
            Step(
                "astha verify shop.orders",
                (
                    prints("3,001 rows"),
                    prints("equal: 1 table", "Registry and Iceberg are equal, with the row that came meanwhile."),
                ),
            ),
        ),
    )
