"""From a draft to a graph, or to the list of all that is wrong with it.

One scope is one workflow: its nodes are named, then put in order by what each waits for, then made into the values that are stored. A
sub-workflow has a scope of its own that knows the one around it, because values may flow in from there. Nothing stops at the first
problem: what cannot be made right gets a stand-in, so that the rest is looked at too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Final, TypeAlias, cast

from horsies.model.graph import Graph, Join, Node, NodeKind, OnError, RefMode
from horsies.model.result import TaskError, TaskResult
from horsies.model.send_options import to_timedelta
from horsies.model.signature import InjectedParameter
from horsies.model.task import TaskOptions
from horsies.model.type_compat import inside, is_assignable, is_value_assignable, item_of, type_name
from horsies.tasks.nodes import Reference, TaskNode
from horsies.tasks.sender import Sender
from horsies.tasks.task import BaseTask
from horsies.workflows.bind_arguments import argument_type, bind_arguments, flow_from, flows_in, is_map
from horsies.workflows.nodes import NodeName, SubgraphNode, SuccessCase, SuccessPolicy, WorkflowDraft
from horsies.workflows.validate import (
    MAX_DEPTH,
    TOO_DEEP,
    Scope,
    cycle,
    inverse,
    join_problems,
    name_problems,
    term_problems,
    time_limit_problems,
    topological,
    word,
    word_problem,
)

# --------
# What a workflow has as a whole: its name, its limits, its output, and what counts as success.

LAST_RESULTS: Final = dict[str, TaskResult[Any, TaskError]]
"""What the handle of a workflow without an output gives."""

Policy: TypeAlias = tuple[tuple[tuple[int, ...], ...], frozenset[int]]


def check_whole_graph(scope: Scope, nodes: tuple[Node, ...]) -> Graph:
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
    return None if limit is None or found else round(to_timedelta(limit).total_seconds() * 1000)


def _output(scope: Scope) -> int | None:
    output, wanted = scope.draft.output, scope.draft.value_type
    if output is None:
        if not is_assignable(None, wanted) and not is_assignable(LAST_RESULTS, wanted):
            scope.problems.append(f"it is to give {type_name(wanted)}, but names no output; name the node that has it")
        return None
    position = scope.position(output)
    if position is None:
        scope.problems.append(f"output: {scope.not_here(output)}")
        return None
    produced = scope.drafts.type_of(scope.nodes[position])
    if not is_assignable(produced, wanted):
        scope.problems.append(
            f"it is to give {type_name(wanted)}, but its output {scope.ids[position]!r} gives {type_name(produced)}"
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


Common: TypeAlias = dict[str, Any]
"""What every kind of node has, by the names of its fields."""


def compile_graph(scope: Scope) -> Graph:
    """The graph is only good if the scope has no problems afterwards."""
    waits_for = [_dependencies(scope, position, _named_by(scope, position)) for position in range(len(scope.nodes))]
    order = topological(waits_for)
    if len(order) < len(waits_for):
        path = " → ".join(repr(scope.ids[position]) for position in cycle(waits_for, order))
        scope.problems.append(f"the nodes {path} wait for each other; remove one of these edges")
        order = list(range(len(waits_for)))
    scope.index = inverse(order)
    return check_whole_graph(scope, tuple(_node(scope, position, waits_for[position]) for position in order))


# -- what a node waits for


def _dependencies(scope: Scope, position: int, names: Iterable[NodeName]) -> list[int]:
    found: set[int] = set()
    for name in {id(name): name for name in names}.values():
        dependency = scope.position(name)
        if dependency is None:
            scope.report(position, scope.not_here(name))
        else:
            found.add(dependency)
    return sorted(found)


def _named_by(scope: Scope, position: int) -> Iterator[NodeName]:
    node = scope.nodes[position]
    if not isinstance(node, TaskNode | SubgraphNode):
        return
    lists: dict[str, Any] = {"waits_for": node.waits_for}
    if isinstance(node, TaskNode):
        lists["workflow_ctx_from"] = node.workflow_ctx_from or ()
    for option, names in lists.items():
        yield from cast("tuple[NodeName, ...]", scope.listed(f"node {scope.ids[position]!r}: {option}", names))
    yield from node.args_from.values()
    yield from (flow.source for flow in _written_flows(node) if not (flow.from_outside or flow.is_literal))


def _awaited(scope: Scope, node: TaskNode[Any] | SubgraphNode[Any], join: Join, waits_for: Sequence[int]) -> Common:
    """What must have ended before it runs, and what of that does not count in its join: all that it waits for counts, but not what only its context
    has. With join="all" everything counts, so nothing is left to await.
    """
    if join is Join.ALL or not isinstance(node, TaskNode):
        return {}
    of_context = _found(scope, node.workflow_ctx_from if isinstance(node.workflow_ctx_from, tuple) else ())
    of_maps = _found(scope, [flow.source for flow in _flows(scope, node) if flow.mode is RefMode.RESULTS])
    others: list[NodeName] = [flow.source for flow in _flows(scope, node) if not flow.from_outside]
    others += node.waits_for if isinstance(node.waits_for, tuple) else ()
    counted = _found(scope, others)
    return {
        "awaits": scope.indexes({*of_context, *of_maps} & {*waits_for}),
        "uncounted": frozenset(scope.indexes({*waits_for} - {*counted})),
    }


def _found(scope: Scope, names: Iterable[NodeName]) -> set[int]:
    return {position for position in map(scope.position, names) if position is not None}


def _written_flows(node: TaskNode[Any] | SubgraphNode[Any]) -> Iterator[Reference]:
    if isinstance(node, TaskNode) and node.args:
        yield from flows_in(node.args)
    if node.kwargs:
        yield from flows_in(node.kwargs)


def _flows(scope: Scope, node: TaskNode[Any] | SubgraphNode[Any]) -> list[Reference]:
    return [*_written_flows(node), *_flows_from(scope, node).values()]


def _flows_from(scope: Scope, node: TaskNode[Any] | SubgraphNode[Any]) -> dict[str, Reference]:
    """What `args_from` says, as if it had been written into the arguments."""
    if isinstance(node, SubgraphNode):
        return node.flows()
    if not isinstance(node.fn, BaseTask):
        return {name: Reference(source, RefMode.VALUE) for name, source in node.args_from.items()}
    codec = node.fn.arguments
    return {
        name: flow_from(source, scope.node_named(source), argument_type(codec, name))
        for name, source in node.args_from.items()
    }


# -- the node itself


def _node(scope: Scope, position: int, waits_for: Sequence[int]) -> Node:
    node = scope.nodes[position]
    common: Common = {
        "index": scope.index[position],
        "node_id": scope.ids[position],
        "waits_for": scope.indexes(waits_for),
    }
    if not isinstance(node, TaskNode | SubgraphNode):
        scope.report(
            position, f"{type(node).__name__} is no kind of node; use task.node(), TaskNode or SubWorkflowNode"
        )
        return _stand_in(common)
    join = word(Join, node.join) or Join.ALL
    common |= _awaited(scope, node, join, waits_for)
    scope.report(position, *join_problems(node, len(waits_for) - len(common.get("uncounted", ()))))
    common |= {"join": join, "min_success": node.min_success, "allow_failed_deps": node.allow_failed_deps}
    scope.report(position, *_bare_value_problems(scope, node, join), *_map_problems(scope, node))
    return _task(scope, position, node, common) if isinstance(node, TaskNode) else _part(scope, position, node, common)


def _stand_in(common: Common) -> Node:
    return Node(**common, kind=NodeKind.TASK)


def _bare_value_problems(scope: Scope, node: TaskNode[Any] | SubgraphNode[Any], join: Join) -> Iterator[str]:
    if join is Join.ALL and not node.allow_failed_deps:
        return
    why = "with allow_failed_deps" if node.allow_failed_deps else f'with join="{join}"'
    for flow in _flows(scope, node):
        if flow.mode not in {RefMode.RESULT, RefMode.RESULTS} and not (flow.from_outside or flow.is_literal):
            yield f"{why} it may run although {scope.name_of(flow)} has no value; take its result_from() instead"


def _map_problems(scope: Scope, node: TaskNode[Any] | SubgraphNode[Any]) -> Iterator[str]:
    """What cannot be taken from a map, or from what is not one."""
    for flow in _flows(scope, node):
        source = scope.source_of(flow)
        if flow.from_outside:
            continue  # reported where it flows in
        if flow.mode is RefMode.RESULTS:
            if source is not None and not is_map(source):
                yield f"results_from() is for a map_node, and {scope.name_of(flow)} is none; take its result_from() instead"
        elif flow.mode is not RefMode.EACH and isinstance(source, TaskNode) and source.may_have_gaps:
            yield (
                f"the list of {scope.name_of(flow)} may have gaps, because it has max_failures or min_success; "
                "take its results_from() instead"
            )


def _task(scope: Scope, position: int, node: TaskNode[Any], common: Common) -> Node:
    if not isinstance(node.fn, BaseTask):
        scope.report(position, _no_task(node.fn))
        return _stand_in(common)
    task, registry = node.fn, scope.drafts.registry
    if registry.tasks.get(task.name) is not task:
        scope.report(position, f"task {task.name!r} belongs to another app")
    fit = bind_arguments(task.arguments, node.args, {**node.kwargs, **_flows_from(scope, node)}, scope)
    scope.report(position, *_given_twice(node))
    scope.report(position, *fit.problems, *term_problems(node, registry.config), *_each_problems(scope, node))
    return Node(
        **common,
        kind=node.kind,
        terms=_terms(task.options, node),
        args=fit.text,
        refs=tuple(fit.refs),
        max_parallel=node.max_parallel,
        max_failures=node.max_failures,
        min_item_success=node.min_item_success,
        items=fit.items,
        ctx_from=_context(scope, position, node, common["waits_for"]),
        wants=task.arguments.wants,
    )


def _given_twice(node: TaskNode[Any] | SubgraphNode[Any]) -> Iterator[str]:
    for name in sorted({*node.kwargs} & {*node.args_from}):
        yield f"argument '{name}' is in kwargs and in args_from"


def _terms(terms: TaskOptions, node: TaskNode[Any]) -> TaskOptions:
    given = {"queue_name": node.queue, "priority": node.priority, "good_until": node.good_until}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return terms._replace(**changes) if changes else terms


def _each_problems(scope: Scope, node: TaskNode[Any]) -> Iterator[str]:
    found = [flow for flow in _written_flows(node) if flow.mode is RefMode.EACH]
    if node.kind is not NodeKind.MAP:
        if found:
            yield f"only a map_node can go through {scope.name_of(found[0])} by each(); write task.map_node(...)(...)"
        return
    if len(found) != 1:
        yield f"a map_node goes through one list, so each(node) stands in it once; here it does {len(found)} times"
    for flow in found:
        if flow.is_literal:
            least, items = node.min_item_success, cast("Any", flow.source)
            if isinstance(least, int) and isinstance(items, Sized) and least > len(items):
                yield f"min_success={least} can never be met, because each() goes through {len(items)} items"
        elif item_of(tp := scope.type_at_source(flow)) is None:
            yield f"each() goes through a list, but {scope.name_of(flow)} gives {type_name(tp)}"


def _context(scope: Scope, position: int, node: TaskNode[Any], waits_for: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes whose results its workflow_ctx has: those that were asked for, or all that it waits for."""
    task, asked = cast("BaseTask[..., Any]", node.fn), node.workflow_ctx_from
    if InjectedParameter.CONTEXT not in task.arguments.wants:
        if asked is not None:
            scope.report(position, f"workflow_ctx_from is for a task that takes workflow_ctx; {task.name!r} does not")
        return ()
    if not isinstance(asked, tuple):
        return waits_for
    positions = [scope.position(name) for name in asked]
    return scope.indexes(found for found in positions if found is not None)


def _part(scope: Scope, position: int, node: SubgraphNode[Any], common: Common) -> Node:
    scope.report(position, *_given_twice(node))
    draft = scope.drafts.of(node)
    if not isinstance(draft, WorkflowDraft):
        scope.report(position, *draft.problems)
        return _stand_in(common)
    if scope.depth >= MAX_DEPTH:
        scope.report(position, TOO_DEEP)
        return _stand_in(common)
    scope.report(position, *_parameter_problems(scope, node))
    inner = Scope(scope.drafts, draft, outer=scope)
    child = compile_graph(inner)
    scope.report(position, *inner.problems)
    scope.is_part = scope.is_part or inner.is_part
    return Node(**common, kind=NodeKind.WORKFLOW, child=child)


def _parameter_problems(scope: Scope, node: SubgraphNode[Any]) -> Iterator[str]:
    """What does not fit the annotations of its parameters."""
    given: Mapping[str, Any] = {**node.kwargs, **node.flows()}
    for name, value in given.items():
        for place, piece, wanted in _pieces(name, value, node.parameter_type(name)):
            if isinstance(piece, Reference):
                produced = Any if piece.is_literal else scope.type_of(piece)
                if not is_assignable(produced, wanted):
                    gives = f"{scope.name_of(piece)} gives {type_name(produced)}"
                    yield f"parameter '{place}' takes {type_name(wanted)}, but {gives}"
            elif not is_value_assignable(piece, wanted):
                yield f"parameter '{place}' takes {type_name(wanted)}, not {piece!r:.80}"


def _pieces(place: str, value: object, wanted: Any) -> Iterator[tuple[str, object, Any]]:
    """A value, or, where something flows into a list or a dict, each member of it with its own annotation."""
    match value:
        case list() | tuple() if any(flows_in(cast("object", value))):
            for at, item in enumerate(cast("Sequence[object]", value)):
                yield from _pieces(f"{place}[{at}]", item, inside(wanted, at))
        case Mapping() if any(flows_in(cast("object", value))):
            for key, item in cast("Mapping[object, object]", value).items():
                yield from _pieces(f"{place}.{key}", item, inside(wanted, str(key)))
        case _:
            yield place, value, wanted


def _no_task(fn: object) -> str:
    if isinstance(fn, Sender):
        return "it is made of task.with_options(...); give a node its options by task.node(...)"
    return f"it runs {fn!r:.80}, which is no task; decorate it with @app.task(...)"
