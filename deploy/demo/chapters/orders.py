"""A table, and several writers."""

from __future__ import annotations

from deploy.demo.claims import counts, prints
from deploy.demo.story import Chapter, Step

CREATE = (
    "astha tables create shop.orders --column id:long! --column region:string --column amount:double"
    " --partition-by region"
)

FILES = """\
for n in 1 2 3; do
  seq ${n}000 ${n}999 | awk 'BEGIN {print "id,region,amount"}
    {print $1 "," ($1 % 2 ? "eu" : "us") "," $1 % 100}' > orders-$n.csv
done"""

INSERTS = "(for n in 1 2 3; do astha insert shop.orders orders-$n.csv & done; wait)"


def chapter() -> Chapter:
    return Chapter(
        "orders",
        "A table, and three writers at once",
        "An insert writes Parquet files and registers them in one transaction of the registry.",
        (
            Step(CREATE, (prints("created shop.orders"),)),
            Step(FILES),
            Step(
                INSERTS,
                (
                    counts(
                        r"^shop\.orders: 1,000 rows in 2 files",
                        3,
                        "All three inserts have returned: their rows are durable.",
                    ),
                ),
            ),
            Step("astha tables list", (prints(" 3,000 ", "The registry counts 3,000 rows."),)),
        ),
    )
