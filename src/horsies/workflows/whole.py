"""What a workflow has as a whole: its name, its limits, its output, and what counts as success."""

from typing import Any, Final, TypeAlias, cast

from horsies.model.fits import fits, shown
from horsies.model.graph import Graph, Node, OnError
from horsies.model.options import as_span
from horsies.model.result import TaskError, TaskResult
from horsies.workflows.draft import NodeName, SuccessCase, SuccessPolicy
from horsies.workflows.limits import name_problems, time_limit_problems, word, word_problem
from horsies.workflows.scope import Scope

LAST_RESULTS: Final = dict[str, TaskResult[Any, TaskError]]
"""What the handle of a workflow without an output gives."""

Policy: TypeAlias = tuple[tuple[tuple[int, ...], ...], frozenset[int]]


def whole(scope: Scope, nodes: tuple[Node, ...]) -> Graph:
    draft, problems = scope.draft, scope.problems
    problems.extend(name_problems("its name", draft.name))
    if draft.definition_key is not None:
        problems.extend(name_problems("its definition_key", draft.definition_key))
    on_error = word(OnError, draft.on_error)
    if on_error is None:
        problems.append(word_problem("on_error", OnError, draft.on_error))
    cases, optional = _policy(scope, draft.success_policy)
    return Graph(
        name=draft.name,
        nodes=nodes,
        output=_output(scope),
        on_error=on_error or OnError.FAIL,
        success_cases=cases,
        optional=optional,
        time_limit_ms=_time_limit_ms(scope),
        definition_key=draft.definition_key,
    )


def _time_limit_ms(scope: Scope) -> int | None:
    limit = scope.draft.time_limit
    found = list(time_limit_problems(limit))
    scope.problems.extend(found)
    return None if limit is None or found else round(as_span(limit).total_seconds() * 1000)


def _output(scope: Scope) -> int | None:
    output, wanted = scope.draft.output, scope.draft.value_type
    if output is None:
        if not fits(None, wanted) and not fits(LAST_RESULTS, wanted):
            scope.problems.append(f"it is to give {shown(wanted)}, but names no output; name the node that has it")
        return None
    position = scope.position(output)
    if position is None:
        scope.problems.append(f"output: {scope.not_here(output)}")
        return None
    produced = scope.drafts.type_of(scope.nodes[position])
    if not fits(produced, wanted):
        scope.problems.append(
            f"it is to give {shown(wanted)}, but its output {scope.ids[position]!r} gives {shown(produced)}"
        )
    return scope.index[position]


def _policy(scope: Scope, policy: object) -> Policy:
    if policy is None:
        return (), frozenset()
    if not isinstance(policy, SuccessPolicy):
        scope.problems.append(f"success_policy must be a SuccessPolicy, not {policy!r}")
        return (), frozenset()
    cases = [
        _case(scope, f"success_policy.cases[{number}]", case)
        for number, case in enumerate(scope.listed("success_policy.cases", policy.cases))
    ]
    return tuple(cases), frozenset(_members(scope, "success_policy.optional", policy.optional))


def _case(scope: Scope, what: str, case: object) -> tuple[int, ...]:
    if not isinstance(case, SuccessCase) or case.required == ():
        scope.problems.append(f"{what} requires nothing; write SuccessCase(required=[...])")
        return ()
    return _members(scope, what, case.required)


def _members(scope: Scope, what: str, given: object) -> tuple[int, ...]:
    names = cast("tuple[NodeName, ...]", scope.listed(what, given))
    positions = [(name, scope.position(name)) for name in names]
    scope.problems.extend(f"{what}: {scope.not_here(name)}" for name, at in positions if at is None)
    return scope.indexes(at for _, at in positions if at is not None)
