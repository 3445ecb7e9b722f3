"""`resume_at`: a component that sends positions on learns where its deliveries continue."""

from __future__ import annotations

from astha.lanes.state import LaneState
from astha.testing import ManualClock
from registry.position import Position
from tests.unit.astha.lanes.harness import LaneHarness, Subject


class ResumingSubject(Subject):
    """Records each `resume_at`, with the number of events and refreshes before it."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.resumed: list[tuple[int, int, int, int]] = []
        self.error: Exception | None = None

    def resume_at(self, position: Position, epoch: int) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.resumed.append((position, epoch, len(self.events), self.refreshes))


async def test_a_restored_component_resumes_at_its_position_before_the_first_event() -> None:
    subject = ResumingSubject()
    harness = LaneHarness(subject, resumed=True)
    harness.epoch = 7
    earlier = harness.registry.commit()
    async with harness:
        harness.commit("a")
        await harness.settle()
        assert subject.names == ["a"]
        assert subject.resumed == [(earlier.position, 7, 0, 0)]


async def test_every_refresh_is_preceded_by_the_position_that_deliveries_exceed() -> None:
    subject = ResumingSubject()
    async with LaneHarness(subject) as harness:
        assert subject.resumed == [(0, 1, 0, 0)]
        delivered = harness.commit("a")
        await harness.settle()
        harness.lane.refresh("test")
        await harness.settle()
        assert subject.resumed[1:] == [(delivered.position, 1, 1, 1)]
        assert harness.commit("b").position > delivered.position


async def test_a_component_that_can_not_resume_is_refreshed() -> None:
    subject = ResumingSubject()
    subject.error = RuntimeError("no")
    harness = LaneHarness(subject, resumed=True)
    async with harness:
        await harness.settle()
        assert harness.lane.state is LaneState.BROKEN
        assert "no" in str(harness.lane.reason)
        await harness.converge()
        assert subject.resumed == [(0, 1, 0, 0)]
