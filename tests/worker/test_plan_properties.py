"""Whatever happens in whatever order: the dispatcher keeps each claim in exactly one place, and claims no more than it may."""

from collections import Counter
from dataclasses import fields
from typing import Any, Literal, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.executor.protocol import Done
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim
from horsies.tasks.claim import NO_CAPS, Caps, ClaimRequest, Payload
from horsies.tasks.unknown import UnfitOutcome
from horsies.worker.batch import Batch, BatchResult, ListClaimable
from horsies.worker.child import NO_LIMIT, ChildExited, TaskBegan, TaskDone, TasksReturned
from horsies.worker.child import Child as RealChild
from horsies.worker.plan import PREFETCH_MAX, DispatcherState, held_claims, is_drained, next_wakeup, plan_batch
from tests.fixtures.dispatching import ABOUT_VALUES, MAY_PASS, ONE_CAP, Child, Simulation, claim, simulate

PROCESSES = 2
CRASH = TaskError(error_code="WORKER_CRASHED", message="the child died")
Key = tuple[str, int]


class RunningChild(Child):
    """Keeps what it is assigned, as the real one does."""

    def assign(self, claims: list[Claim]) -> None:
        for each in claims:
            self.assignments.last_no += 1
            self.assignments.claims[self.assignments.last_no] = each
        self.load = len(self.assignments.claims)

    @property
    def waiting(self) -> list[int]:
        return [number for number, _ in self.assignments.items() if self.assignments.is_waiting(number)]


def snapshot(state: DispatcherState) -> dict[str, Any]:
    """Return all fields, with copies of the collections."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value.copy() if hasattr(value, "copy") else value for name, value in values.items()}


def contents(batch: Batch | None) -> dict[str, Any] | None:
    return None if batch is None else {field.name: getattr(batch, field.name) for field in fields(batch)}


class DispatcherMachine(RuleBasedStateMachine):
    """The database is a set of rows that it assigns to this worker."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[Key] = set()
        self.open: list[Batch] = []

    @initialize(
        prefetch=st.sampled_from([0, 1, 3, "auto"]),
        concurrency=st.sampled_from([1, 1, 3]),
        caps=st.sampled_from([NO_CAPS, NO_CAPS, ONE_CAP, Caps(cluster_wide=4)]),
        max_claim_batch=st.sampled_from([0, 0, 2]),
        max_claim_per_worker=st.sampled_from([0, 0, 1, 3]),
    )
    def begin(
        self,
        prefetch: int | Literal["auto"],
        concurrency: int,
        caps: Caps,
        max_claim_batch: int,
        max_claim_per_worker: int,
    ) -> None:
        self.children = [RunningChild() for _ in range(PROCESSES)]
        self.simulation: Simulation = simulate(
            *self.children,
            prefetch=prefetch,
            concurrency=concurrency,
            processes=PROCESSES,
            caps=caps,
            max_claim_batch=max_claim_batch,
            max_claim_per_worker=max_claim_per_worker,
        )
        self.state, self.dispatcher = self.simulation.state, self.simulation.dispatcher

    # -- children

    def _child(self, data: st.DataObject, *, busy: bool = True) -> tuple[RealChild, RunningChild] | None:
        child = data.draw(st.sampled_from(self.children))
        return None if busy and not child.load else (cast("RealChild", child), child)

    @rule(data=st.data(), duration_us=st.sampled_from([20, 20, 30_000]), in_workflow=st.booleans())
    def a_task_begins_and_ends(self, data: st.DataObject, duration_us: int, in_workflow: bool) -> None:  # noqa: FBT001 - a rule is given its values by name
        found = self._child(data)
        if found is None:
            return
        real, child = found
        number = child.assignments.items()[0][0]
        if child.assignments.is_waiting(number):
            child.assignments.begun[number] = self.simulation.now
            begun = child.assignments.claims[number]
            self.dispatcher.on_child_report(real, TaskBegan(number, begun))
        ended = child.assignments.end(number)._replace(root_id="a workflow" if in_workflow else None)
        child.load = len(child.assignments.claims)
        done = Done(number, TaskStatus.COMPLETED.value, duration_us, None, "1", None)
        self.dispatcher.on_child_report(real, TaskDone(ended, done))

    @rule(data=st.data())
    def unbegun_tasks_are_returned(self, data: st.DataObject) -> None:
        if found := self._child(data):
            real, child = found
            claims = [child.assignments.end(number) for number in child.waiting]
            child.load = len(child.assignments.claims)
            self.dispatcher.on_child_report(real, TasksReturned(claims))

    @rule(data=st.data())
    def a_child_dies(self, data: st.DataObject) -> None:
        if found := self._child(data):
            real, child = found
            begun, waiting = child.assignments.remove_all(CRASH)
            child.load = 0
            self.dispatcher.on_child_report(real, ChildExited(begun, waiting))

    @rule(data=st.data())
    def a_child_is_closed_or_opened(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(self.children))
        child.budget_left = 0 if child.budget_left else NO_LIMIT

    # -- time and notifications

    @rule(seconds=st.sampled_from([0.001, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.simulation.now += seconds
        self.dispatcher.on_timer()

    @rule(payload=st.sampled_from([None, "100 1000000 default", "later 0", "nonsense"]))
    def a_notification_arrives(self, payload: str | None) -> None:
        self.dispatcher.on_notification(payload)

    @rule()
    def the_worker_is_stopped(self) -> None:
        self.state.is_stopping = True

    # -- batches

    @rule()
    def a_batch_is_sent(self) -> None:
        self.dispatcher.on_timer()  # move what is due, so that the plan below is the one that is sent
        before = snapshot(self.state)
        planned = plan_batch(self.state, self.simulation.now)
        again = plan_batch(self.state, self.simulation.now)
        next_wakeup(self.state, self.simulation.now)
        assert snapshot(self.state) == before, "a plan changes nothing"
        assert contents(planned) == contents(again)
        sent = self.simulation.next_batch()
        if sent is None:
            return  # endings wait for each other, or there is a pause
        assert contents(sent) == contents(planned)
        self.open.append(sent)
        if self.state.is_stopping:
            assert sent.is_single_part or not (sent.claim_requests or sent.starts or sent.promotes)
        if sent.is_single_part:
            assert len(sent.held) + len(sent.progress) + len(sent.unsettled) + sent.promotes == 1
            assert not sent.claim_requests
        if self.state.limits.caps.has_limits:
            assert sum(bool(batch.claim_requests) for batch in self.open) <= 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_batch_is_committed(self, data: st.DataObject) -> None:
        batch = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        claimed = [self._claims(data, request) for request in batch.claim_requests]
        started = frozenset(one.id for one in batch.starts if data.draw(st.booleans()))
        outcomes = {each.id: data.draw(st.sampled_from(UnfitOutcome)) for each in batch.unfit}
        found = data.draw(st.sampled_from([[], ["a row"]])) if isinstance(batch.search, ListClaimable) else []
        self.simulation.commit(
            batch,
            BatchResult(
                claimed=claimed,
                started=started,
                unfit_outcomes=outcomes,
                found_ids=found,
                payloads={one.id: Payload(2, "{}", None) for one in batch.loads if data.draw(st.booleans())},
                unsettled=["a workflow"] if batch.unsettled and data.draw(st.booleans()) else [],
            ),
        )
        self.rows |= {(one.id, one.claim_no) for group in claimed for one in group}
        self.rows -= {(one.id, one.claim_no) for one in (*batch.endings, *batch.interrupted, *batch.releases)}
        gone = [each for each in batch.unfit if outcomes[each.id] is not UnfitOutcome.NO_WORKER]
        self.rows -= {(each.id, each.claim_no) for each in gone}

    def _claims(self, data: st.DataObject, request: ClaimRequest) -> list[Claim]:
        count = data.draw(st.integers(0, min(request.limit, request.queue_limit or request.limit, 6)))
        kinds = data.draw(
            st.lists(st.sampled_from(["add", "add", "unread", "unknown"]), min_size=count, max_size=count)
        )
        forms: dict[str, dict[str, Any]] = {"add": {}, "unread": {"args": None}, "unknown": {"task_name": "unknown"}}
        return [claim()._replace(**forms[kind]) for kind in kinds]

    @precondition(lambda self: self.open)
    @rule()
    def a_connection_is_lost(self) -> None:
        self.simulation.lose(self.open.pop())

    @precondition(lambda self: self.open)
    @rule(error=st.sampled_from([ABOUT_VALUES, MAY_PASS]))
    def a_batch_is_refused(self, error: Any) -> None:
        self.simulation.refuse(self.open.pop(0), error)

    # -- what always holds

    @invariant()
    def each_claim_is_in_exactly_one_place(self) -> None:
        places = Counter((held.id, held.claim_no) for held in held_claims(self.state))
        assert set(places) == self.rows
        assert all(count == 1 for count in places.values())
        if self.rows or self.open:
            assert not is_drained(self.state)

    @invariant()
    def limits_are_kept(self) -> None:
        state, prefetch = self.state, self.state.prefetch
        running = len(state.unread) + sum(child.load for child in self.children)
        waiting, requested = len(state.buffer), Counter[TaskStatus]()
        for batch in self.open:
            running += len(batch.loads)
            waiting += len(batch.starts)
            for request in batch.claim_requests:
                requested[request.status] += request.limit
        held = running + waiting + requested.total()
        child_limit = prefetch.concurrency - 1 + PREFETCH_MAX if prefetch.is_adaptive else prefetch.concurrency
        assert all(child.load <= child_limit for child in self.children)
        buffer = 0 if prefetch.prefetch_buffer == "auto" else prefetch.prefetch_buffer
        assert held <= PROCESSES * child_limit + buffer
        if limit := state.limits.max_claim_per_worker:
            assert waiting + requested[TaskStatus.CLAIMED] <= limit if prefetch.has_buffer else held <= limit


TestDispatcher = pytest.mark.promise("C1", "C12", "C13", "C17", "C18", "W9", "D6")(DispatcherMachine.TestCase)
TestDispatcher.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
