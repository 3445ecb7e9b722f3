from __future__ import annotations

import sys

from benchmarks.fanout.kafka import kafka_figures
from benchmarks.fanout.mqtt import mqtt_figures
from benchmarks.report import Report, run


async def measure(report: Report) -> None:
    await kafka_figures(report)
    await mqtt_figures(report)


if __name__ == "__main__":
    sys.exit(run("fan-out", measure))
