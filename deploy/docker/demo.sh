#!/bin/sh
# Something to look at: a table that grows by a few rows, and a topic by a few records, every ten seconds.
set -eu
PERIOD_S=${DEMO_PERIOD_S:-10}
ROUNDS=${DEMO_ROUNDS:--1} # -1: without end
rows=${TMPDIR:-/tmp}/rows.json

astha tables create demo.readings --if-not-exists \
    --column at:timestamptz! --column sensor:string! --column celsius:double --sort-by at
astha topics create demo_readings --partitions 1 --retention 1d --if-not-exists

round=0
while [ "$round" -ne "$ROUNDS" ]; do
    at=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    for sensor in north south attic; do
        printf '{"at": "%s", "sensor": "%s", "celsius": %d.%d}\n' "$at" "$sensor" "$((15 + round % 10))" "$((round % 7))"
    done > "$rows"
    # A registry or storage that is away for a while only costs this round.
    astha insert demo.readings "$rows" || echo "not inserted: trying again in $PERIOD_S s" >&2
    astha produce demo_readings --input "$rows" || echo "not produced: trying again in $PERIOD_S s" >&2
    round=$((round + 1))
    sleep "$PERIOD_S"
done
