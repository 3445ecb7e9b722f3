"""Benchmarks: ratios against a peer or a limit. A benchmark is a subpackage with `measure` in its `__main__`.

`python -m benchmarks.NAME` prints a table for people; `--json` prints one object, figure -> value, and nothing else on
stdout; `--quick` stays under 50 seconds; `--check` fails if a figure misses its goal. `python -m benchmarks` (`make
bench`) runs them all. Figures are ratios of things measured in the same run, interleaved, because rates say more about
the machine than about the code.
"""
