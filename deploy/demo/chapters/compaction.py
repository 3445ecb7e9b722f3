"""Small files, merged on Spark."""

from __future__ import annotations

from deploy.demo.claims import counts, lacks, less, notes, prints, same
from deploy.demo.machine import no_spark
from deploy.demo.story import Addresses, Chapter, Step

CREATE = (
    "astha tables create shop.visits --column id:long! --column region:string --column seconds:double"
    " --partition-by region --sort-by id"
)

FILES = """\
mkdir visits
for n in $(seq 10 109); do
  seq ${n}000 ${n}299 | awk 'BEGIN {print "id,region,seconds"; split("eu us ap", regions)}
    {print $1 "," regions[$1 % 3 + 1] "," $1 % 97}' > visits/$n.csv
done"""

_FILES = r"^shop\.visits +equal +([\d,]+) files"
_ROWS = r"^([\d,]+ rows, checksum \d+)"
_SECONDS = r"([\d.]+) seconds$"


def chapter(addresses: Addresses) -> Chapter:
    return Chapter(
        "compaction",
        "Small files, merged on Spark",
        "A hundred inserts leave three hundred small files. The compactor decides by events: it is paused until then.",
        (
            Step("astha pause compactor", (prints("compactor is paused"),)),
            Step(CREATE),
            Step(FILES),
            Step("astha insert shop.visits visits/*.csv", (prints("30,000 rows in 300 files"),), limit_s=300),
            Step("astha verify shop.visits", (notes("files", _FILES),)),
            Step(
                f"""\
cat > visits.py <<'END'
import time, duckdb

lake = duckdb.connect()
lake.execute("LOAD iceberg")
lake.execute("ATTACH 'lake' (TYPE iceberg, ENDPOINT '{addresses.catalog_url}', AUTHORIZATION_TYPE 'none')")
taken = []
for _ in range(5):
    began = time.perf_counter()
    rows, checksum = lake.sql("SELECT count(*), bit_xor(hash(id, region, seconds)) FROM lake.shop.visits").fetchone()
    taken.append(time.perf_counter() - began)
print(f"{{rows:,}} rows, checksum {{checksum}}, best of five: {{min(taken):.3f}} seconds")
END"""
            ),
            Step("python visits.py", (prints("30,000 rows"), notes("rows", _ROWS), notes("seconds", _SECONDS))),
            Step("astha resume compactor"),
            Step(
                "astha compaction list shop.visits",
                (
                    counts(
                        r" done .* -> 1 ",
                        3,
                        "Each partition is one file now; the swap was one transaction per partition.",
                    ),
                    lacks("running"),
                    lacks("waiting"),
                ),
                until=True,
                limit_s=300,
            ),
            Step("astha verify shop.visits", (less("files", _FILES, "Fewer files"),)),
            Step(
                "python visits.py",
                (same("rows", _ROWS, "The same rows"), less("seconds", _SECONDS, "A faster query, in seconds")),
            ),
        ),
        no_spark,
    )
