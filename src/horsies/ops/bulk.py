"""Actions on all tasks that match a filter, in batches.

A `BulkAction` is an iterator, for `for` and for `async for`: each step acts on one batch and returns the totals so far. To stop, leave the
loop: batches that were done stay done, and the next action with the same filter continues with the rest.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.ops.audit import begin_action, end_action
from horsies.ops.operation import Verb, operation
from horsies.tasks.ids import new_task_id
from horsies.tasks.inspect import TaskCount, TaskFilter, TaskPage, TaskSummary, count_newest, list_all_tasks

BATCH = 1_000


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """How many tasks were selected so far, and how many had each outcome."""

    selected: int
    outcomes: Mapping[str, int]


@dataclass(slots=True)
class BulkAction:
    """Select tasks, newest first, and act on each batch. Each task comes once, even if the action changes whether it matches."""

    broker: PostgresBroker
    filters: TaskFilter
    act: Callable[[Sequence[TaskSummary]], Verb[Mapping[str, int]]]
    """Makes the verb for a batch. It returns how many tasks had each outcome."""
    changes: frozenset[str]
    """The outcomes that count as changes in the audit."""
    actor: str
    action: str
    target: str
    _after: str | None = None
    _is_done: bool = False
    _selected: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter[str])
    _entry_id: str = field(default_factory=new_task_id)

    def __iter__(self) -> Iterator[BulkProgress]:
        while not self._is_done:
            select = self._select()
            page = self.broker.run(select, again=select)
            if not page.tasks and self._selected:
                return
            act = self._act(page.tasks)
            yield self._note(page, self.broker.run(act, again=act))

    async def __aiter__(self) -> AsyncIterator[BulkProgress]:
        while not self._is_done:
            select = self._select()
            page = await self.broker.run_async(select, again=select)
            if not page.tasks and self._selected:
                return
            act = self._act(page.tasks)
            yield self._note(page, await self.broker.run_async(act, again=act))

    @operation
    def preview(self) -> Verb[TaskCount]:
        """Count what is selected, among as many tasks as one page reads: `is_complete` says whether these are all."""
        return partial(count_newest, self.filters)

    preview_async = preview.for_asyncio

    def run(self) -> BulkProgress:
        """Act on all matching tasks, and return the totals."""
        for _ in self:
            pass
        return self._progress()

    async def run_async(self) -> BulkProgress:
        """The same for asyncio code."""
        async for _ in self:
            pass
        return self._progress()

    def _select(self) -> Verb[TaskPage]:
        return partial(list_all_tasks, self.filters, limit=BATCH, after=self._after)

    def _act(self, batch: Sequence[TaskSummary]) -> Verb[Mapping[str, int]]:
        """Act on a batch, and keep the count in the audit up to date. The first one may be empty: that no task matched is recorded, too."""
        verb, changed = self.act(batch), sum(self._outcomes[name] for name in self.changes)

        def run() -> Op[Mapping[str, int]]:
            if self._selected == 0:
                yield from begin_action(self._entry_id, self.actor, self.action, self.target)
            outcomes: Mapping[str, int] = {}
            if batch:
                outcomes = yield from verb()
            yield from end_action(self._entry_id, changed + sum(outcomes.get(name, 0) for name in self.changes))
            return outcomes

        return run

    def _note(self, page: TaskPage, outcomes: Mapping[str, int]) -> BulkProgress:
        self._after, self._is_done = page.next_after, page.next_after is None
        self._selected += len(page.tasks)
        self._outcomes.update(outcomes)
        return self._progress()

    def _progress(self) -> BulkProgress:
        return BulkProgress(self._selected, dict(self._outcomes))
