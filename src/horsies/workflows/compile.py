"""Compile a draft to a graph, or to a list of everything that is wrong with it.

The nodes of a workflow get their ids, are sorted by what each waits for, and become the values that are stored. A sub-workflow is
compiled in a scope of its own. Compiling does not stop at the first problem: a node that cannot be compiled is replaced by a
placeholder, so that the rest is checked too.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias, cast

from horsies.model.errors import WorkflowDefinitionError
from horsies.model.graph import Graph, Join, Node, NodeKind, OnError, RefMode
from horsies.model.result import TaskError, TaskResult
from horsies.model.send_options import span_problems, to_timedelta
from horsies.model.signature import InjectedParameter
from horsies.model.type_compat import is_assignable, is_value_assignable, item_type, list_item_type, type_name
from horsies.model.validation import name_problems
from horsies.tasks.nodes import NodeName, Reference, SuccessCase, SuccessPolicy, TaskNode
from horsies.tasks.sender import Sender
from horsies.tasks.task import BaseTask
from horsies.workflows.bind_arguments import (
    BoundArguments,
    argument_type,
    find_references,
    is_map,
    reference_by_annotation,
)
from horsies.workflows.validate import (
    MAX_DEPTH,
    TOO_DEEP,
    KnownNode,
    Scope,
    SubgraphNode,
    join_problems,
    member_problem,
    option_problems,
    to_member,
    value_type_of,
)

MIN_TIME_LIMIT: Final = timedelta(milliseconds=1)
LAST_RESULTS: Final = dict[str, TaskResult[Any, TaskError]]  # the value of a workflow without an output

NodeFields: TypeAlias = dict[str, Any]
"""Fields of `Node`, by name."""


def compile_graph(scope: Scope) -> Graph:
    """Return the graph of a workflow. It is valid only if the scope has no problems afterwards."""
    waits_for = [_find_dependencies(scope, position) for position in range(len(scope.nodes))]
    order = _sort(scope, waits_for)
    scope.index_at = {position: index for index, position in enumerate(order)}
    nodes = tuple(_compile_node(scope, position, waits_for[position]) for position in order)
    draft, problems = scope.draft, scope.problems
    problems.extend(name_problems("its name", draft.name))
    if draft.definition_key is not None:
        problems.extend(name_problems("its definition_key", draft.definition_key))
    on_error = to_member(OnError, draft.on_error)
    if on_error is None:
        problems.append(member_problem("on_error", OnError, draft.on_error))
    success_cases, optional = _compile_policy(scope, draft.success_policy)
    return Graph(
        name=draft.name,
        nodes=nodes,
        output=_compile_output(scope),
        on_error=on_error or OnError.FAIL,
        success_cases=success_cases,
        optional=optional,
        time_limit_ms=_compile_time_limit(scope),
        definition_key=draft.definition_key,
    )


def _sort(scope: Scope, waits_for: Sequence[Sequence[int]]) -> list[int]:
    """Return the positions in topological order. Of several nodes that could be next, the one that is listed first is."""
    sorter = TopologicalSorter(dict(enumerate(waits_for)))
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1][:0:-1]  # reversed, so that each node waits for the next
        first = cycle.index(min(cycle))
        path = " → ".join(repr(scope.node_ids[at]) for at in [*cycle[first:], *cycle[: first + 1]])
        scope.problems.append(f"the nodes {path} wait for each other; remove one of these edges")
        return [*range(len(waits_for))]
    ready, order = [*sorter.get_ready()], list[int]()
    heapify(ready)
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for position in sorter.get_ready():
            heappush(ready, position)
    return order


# -- what a node waits for


def _find_dependencies(scope: Scope, position: int) -> list[int]:
    node = scope.nodes[position]
    if not isinstance(node, TaskNode | SubgraphNode):
        return []
    lists: dict[str, Any] = {"waits_for": node.waits_for}
    if isinstance(node, TaskNode):
        lists["workflow_ctx_from"] = node.workflow_ctx_from or ()
    names: list[NodeName] = []
    for option, listed in lists.items():
        what = f"node {scope.node_ids[position]!r}: {option}"
        names += cast("tuple[NodeName, ...]", scope.require_list(what, listed))
    names += node.args_from.values()
    written = _written_references(node)
    names += [each.source for each in written if not (each.from_outside or each.is_literal)]
    positions: set[int] = set()
    for name in {id(name): name for name in names}.values():  # each one is reported once
        dependency = scope.position_of(name)
        if dependency is None:
            scope.report(position, scope.unknown_node_problem(name))
        else:
            positions.add(dependency)
    return sorted(positions)


def _written_references(node: KnownNode) -> Iterator[Reference]:
    if isinstance(node, TaskNode) and node.args:
        yield from find_references(node.args)
    if node.kwargs:
        yield from find_references(node.kwargs)


def _references_from(scope: Scope, node: KnownNode) -> dict[str, Reference]:
    """Return the entries of `args_from` as if they were written into the arguments."""
    if isinstance(node, SubgraphNode):
        return node.references()
    if not isinstance(node.fn, BaseTask):
        return {name: Reference(source, RefMode.VALUE) for name, source in node.args_from.items()}
    references: dict[str, Reference] = {}
    for name, source in node.args_from.items():
        position = scope.position_of(source)
        source_node = None if position is None else scope.nodes[position]
        references[name] = reference_by_annotation(source, source_node, argument_type(node.fn.arguments, name))
    return references


# -- nodes


def _compile_node(scope: Scope, position: int, waits_for: Sequence[int]) -> Node:
    node = scope.nodes[position]
    fields: NodeFields = {
        "index": scope.index_at[position],
        "node_id": scope.node_ids[position],
        "waits_for": scope.to_indexes(waits_for),
    }
    if not isinstance(node, TaskNode | SubgraphNode):
        advice = "use task.node(), TaskNode or SubWorkflowNode"
        scope.report(position, f"{type(node).__name__} is not a kind of node; {advice}")
        return Node(**fields, kind=NodeKind.TASK)
    join = to_member(Join, node.join) or Join.ALL
    by_parameter = _references_from(scope, node)
    references = [*_written_references(node), *by_parameter.values()]
    if join is not Join.ALL and isinstance(node, TaskNode):
        fields |= _awaited(scope, node, references, waits_for)
    scope.report(position, *join_problems(node, len(waits_for) - len(fields.get("uncounted", ()))))
    fields |= {"join": join, "min_success": node.min_success, "allow_failed_deps": node.allow_failed_deps}
    scope.report(position, *_missing_value_problems(scope, node, join, references), *_map_problems(scope, references))
    for name in sorted({*node.kwargs} & {*node.args_from}):
        scope.report(position, f"argument '{name}' is in kwargs and in args_from")
    if isinstance(node, TaskNode):
        return _compile_task(scope, position, node, by_parameter, fields)
    return _compile_subgraph(scope, position, node, by_parameter, fields)


def _awaited(
    scope: Scope, node: TaskNode[Any], references: Sequence[Reference], waits_for: Sequence[int]
) -> NodeFields:
    """Return which nodes must have ended before the node runs, and which of those do not count for its join: those that are only in its context.

    With join="all" every node counts, so there is nothing to await.
    """
    context = node.workflow_ctx_from if isinstance(node.workflow_ctx_from, tuple) else ()
    maps = [reference.source for reference in references if reference.mode is RefMode.RESULTS]
    counted: list[NodeName] = [reference.source for reference in references if not reference.from_outside]
    counted += node.waits_for if isinstance(node.waits_for, tuple) else ()
    return {
        "awaits": scope.to_indexes(scope.to_positions([*context, *maps]) & {*waits_for}),
        "uncounted": frozenset(scope.to_indexes({*waits_for} - scope.to_positions(counted))),
    }


def _missing_value_problems(
    scope: Scope, node: KnownNode, join: Join, references: Sequence[Reference]
) -> Iterator[str]:
    """Yield a problem for each value that the node takes although it may run without it."""
    if join is Join.ALL and not node.allow_failed_deps:
        return
    condition = "with allow_failed_deps" if node.allow_failed_deps else f'with join="{join}"'
    for reference in references:
        is_result = reference.mode in {RefMode.RESULT, RefMode.RESULTS}
        if not (is_result or reference.from_outside or reference.is_literal):
            name = scope.source_name(reference)
            yield f"{condition} it may run although {name} has no value; take its result_from() instead"


def _map_problems(scope: Scope, references: Sequence[Reference]) -> Iterator[str]:
    """Yield a problem for each reference that is only for maps, or not for maps of this kind."""
    for reference in references:
        if reference.from_outside or not (source := scope.find_source(reference)):
            continue  # reported in the workflow around this one, or as an unknown node
        name, node = scope.source_name(reference), source.node
        if reference.mode is RefMode.RESULTS:
            if not is_map(node):
                yield f"results_from() is for a map_node, and {name} is not one; take its result_from() instead"
        elif reference.mode is not RefMode.EACH and isinstance(node, TaskNode) and node.has_failure_limits:
            limits = "it has max_failures or min_success"
            yield f"the list of {name} may have gaps, because {limits}; take its results_from() instead"


def _compile_task(
    scope: Scope, position: int, node: TaskNode[Any], by_parameter: Mapping[str, Reference], fields: NodeFields
) -> Node:
    task = node.fn
    if not isinstance(task, BaseTask):
        scope.report(
            position,
            "it is made of task.with_options(...); pass the options to task.node(...)"
            if isinstance(task, Sender)  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
            else f"it runs {task!r:.80}, which is not a task; decorate it with @app.task(...)",
        )
        return Node(**fields, kind=NodeKind.TASK)
    if scope.registry.tasks.get(task.name) is not task:
        scope.report(position, f"task {task.name!r} belongs to another app")
    given = {"queue_name": node.queue, "priority": node.priority, "good_until": node.good_until}
    bound = BoundArguments(task.arguments, node.args, {**node.kwargs, **by_parameter}, scope)
    scope.report(position, *bound.problems, *option_problems(node, scope.registry.config), *_each_problems(scope, node))
    return Node(
        **fields,
        kind=node.kind,
        terms=task.options._replace(**{name: value for name, value in given.items() if value is not None}),
        args=bound.text,
        refs=tuple(bound.refs),
        max_parallel=node.max_parallel,
        max_failures=node.max_failures,
        min_item_success=node.min_item_success,
        items=bound.items,
        ctx_from=_compile_context(scope, position, node, fields["waits_for"]),
        wants=task.arguments.wants,
    )


def _each_problems(scope: Scope, node: TaskNode[Any]) -> Iterator[str]:
    found = [reference for reference in _written_references(node) if reference.mode is RefMode.EACH]
    if node.kind is not NodeKind.MAP:
        if found:
            yield f"each() of {scope.source_name(found[0])} is for a map_node; write task.map_node(...)(...)"
        return
    if len(found) != 1:
        yield f"a map_node has exactly one each(...) in its arguments, not {len(found)}"
    for reference in found:
        if reference.is_literal:
            min_success, items = node.min_item_success, cast("Any", reference.source)
            if isinstance(min_success, int) and isinstance(items, Sized) and min_success > len(items):
                yield f"min_success={min_success} can never be met, because the list of each() has {len(items)} items"
        elif list_item_type(tp := scope.source_type(reference)) is None:
            yield f"each() needs a list, but {scope.source_name(reference)} gives {type_name(tp)}"


def _compile_context(scope: Scope, position: int, node: TaskNode[Any], waits_for: tuple[int, ...]) -> tuple[int, ...]:
    """Return the nodes whose results are in its workflow_ctx: those of workflow_ctx_from, or all that it waits for."""
    task, names = cast("BaseTask[..., Any]", node.fn), node.workflow_ctx_from
    if InjectedParameter.CONTEXT not in task.arguments.wants:
        if names is not None:
            scope.report(position, f"workflow_ctx_from is for a task that takes workflow_ctx; {task.name!r} does not")
        return ()
    return scope.to_indexes(scope.to_positions(names)) if isinstance(names, tuple) else waits_for


def _compile_subgraph(
    scope: Scope, position: int, node: SubgraphNode[Any], by_parameter: Mapping[str, Reference], fields: NodeFields
) -> Node:
    try:
        draft = node.to_draft(scope.registry)
        problems = [TOO_DEEP] if scope.depth >= MAX_DEPTH else []
    except WorkflowDefinitionError as error:
        draft, problems = None, error.problems
    if draft is None or problems:
        scope.report(position, *problems)
        return Node(**fields, kind=NodeKind.TASK)
    scope.report(position, *_parameter_problems(scope, node, {**node.kwargs, **by_parameter}))
    inner = Scope(scope.registry, draft, outer=scope)
    child = compile_graph(inner)
    scope.report(position, *inner.problems)
    scope.takes_outer_values = scope.takes_outer_values or inner.takes_outer_values
    return Node(**fields, kind=NodeKind.WORKFLOW, child=child)


def _parameter_problems(scope: Scope, node: SubgraphNode[Any], parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each value that does not fit the annotation of its parameter."""
    for name, value in parameters.items():
        for path, item, annotation in _typed_items(name, value, node.parameter_type(name)):
            if isinstance(item, Reference):
                produced = Any if item.is_literal else scope.type_of(item)
                if not is_assignable(produced, annotation):
                    gives = f"{scope.source_name(item)} gives {type_name(produced)}"
                    yield f"parameter '{path}' takes {type_name(annotation)}, but {gives}"
            elif not is_value_assignable(item, annotation):
                yield f"parameter '{path}' takes {type_name(annotation)}, not {item!r:.80}"


def _typed_items(path: str, value: object, annotation: Any) -> Iterator[tuple[str, object, Any]]:
    """Yield a value with its path and annotation, or each item of a list or dict that contains references."""
    match value:
        case list() | tuple() if any(find_references(cast("object", value))):
            for at, item in enumerate(cast("Sequence[object]", value)):
                yield from _typed_items(f"{path}[{at}]", item, item_type(annotation, at))
        case Mapping() if any(find_references(cast("object", value))):
            for key, item in cast("Mapping[object, object]", value).items():
                yield from _typed_items(f"{path}.{key}", item, item_type(annotation, str(key)))
        case _:
            yield path, value, annotation


# -- the workflow as a whole


def _compile_policy(scope: Scope, policy: object) -> tuple[tuple[tuple[int, ...], ...], frozenset[int]]:
    """Return the nodes of each success case, and the optional nodes."""
    if policy is None:
        return (), frozenset()
    if not isinstance(policy, SuccessPolicy):
        scope.problems.append(f"success_policy must be a SuccessPolicy, not {policy!r}")
        return (), frozenset()
    cases: list[tuple[int, ...]] = []
    for number, case in enumerate(scope.require_list("success_policy.cases", policy.cases)):
        what = f"success_policy.cases[{number}]"
        if isinstance(case, SuccessCase) and case.required != ():
            cases.append(_policy_nodes(scope, what, case.required))
        else:
            scope.problems.append(f"{what} requires no nodes; write SuccessCase(required=[...])")
    return tuple(cases), frozenset(_policy_nodes(scope, "success_policy.optional", policy.optional))


def _policy_nodes(scope: Scope, what: str, value: object) -> tuple[int, ...]:
    names = cast("tuple[NodeName, ...]", scope.require_list(what, value))
    for name in names:
        if scope.position_of(name) is None:
            scope.problems.append(f"{what}: {scope.unknown_node_problem(name)}")
    return scope.to_indexes(scope.to_positions(names))


def _compile_output(scope: Scope) -> int | None:
    output, value_type = scope.draft.output, scope.draft.value_type
    if output is None:
        if not is_assignable(None, value_type) and not is_assignable(LAST_RESULTS, value_type):
            advice = "set output to the node that returns it"
            scope.problems.append(f"its value should be {type_name(value_type)}, but it has no output; {advice}")
        return None
    position = scope.position_of(output)
    if position is None:
        scope.problems.append(f"output: {scope.unknown_node_problem(output)}")
        return None
    produced = value_type_of(scope.nodes[position], scope.registry)
    if not is_assignable(produced, value_type):
        gives = f"its output {scope.node_ids[position]!r} gives {type_name(produced)}"
        scope.problems.append(f"its value should be {type_name(value_type)}, but {gives}")
    return scope.index_at[position]


def _compile_time_limit(scope: Scope) -> int | None:
    limit = scope.draft.time_limit
    if limit is None:
        return None
    problems = list(span_problems("time_limit", limit))
    if not problems and to_timedelta(limit) < MIN_TIME_LIMIT:
        problems.append(f"time_limit is {limit}, but must be at least 1 ms; choose a longer one, or leave it out")
    scope.problems.extend(problems)
    return None if problems else round(to_timedelta(limit).total_seconds() * 1000)
