"""Storage and a catalog that fail at a step chosen by the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO


class Faults:
    """Counts steps and fails at the chosen one, before or after its effect."""

    countdown: int | None = None
    after_effect = False
    steps: list[str] = []  # noqa: RUF012  (one for the whole process, as PyIceberg makes its FileIOs itself)

    @classmethod
    def at(cls, step: int | None, *, after_effect: bool = False) -> None:
        cls.countdown, cls.after_effect, cls.steps = step, after_effect, []

    @classmethod
    def step(cls, name: str, effect: Callable[[], Any]) -> Any:
        cls.steps.append(name)
        if cls.countdown is not None:
            cls.countdown -= 1
            if cls.countdown == 0:
                if cls.after_effect:
                    effect()
                raise OSError(f"broken at {name}, step {len(cls.steps)}")
        return effect()


class FaultyFileIO(PyArrowFileIO):
    def new_input(self, location: str) -> Any:
        opened = super().new_input(location)
        return Faults.step(f"read {_kind(location)}", lambda: opened)

    def new_output(self, location: str) -> Any:
        opened = super().new_output(location)
        return Faults.step(f"write {_kind(location)}", lambda: opened)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        Faults.step("delete", lambda: PyArrowFileIO.delete(self, location))


def _kind(location: str) -> str:
    name = location.rpartition("/")[2]
    if name.endswith(".json"):
        return "metadata"
    return "list" if name.startswith("snap-") else "manifest"


def break_catalog(catalog: Any, faults: type[Faults] = Faults) -> None:
    """Makes the catalog's calls steps, too."""
    for name in ("commit_table", "load_table", "create_namespace", "swap_metadata_location"):
        original = getattr(catalog, name, None)
        if original is not None:
            setattr(catalog, name, _stepping(name, original, faults))


def _stepping(name: str, original: Callable[..., Any], faults: type[Faults]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return faults.step(name, lambda: original(*args, **options))

    return call
