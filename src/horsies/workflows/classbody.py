"""The body of a class whose inner `Meta` can name the nodes of its own class.

In `class Meta: output = report` Python looks for `report` in the body of Meta, then in the functions around it, then in the module, then
among the builtins; never in the class around it. So while the body of the class runs, its nodes are lent to the module, under the names
that are free there, and taken back when the class is made. Where a name is not free (the task is often called what its node is called)
Meta finds the other object; what that is, is written down, so that it can be known afterwards which node was meant.

A body that raises leaves what it has lent behind, in a module that has usually failed to load by that; another class of the same body
is not misled by it, because what a name stands for outside is written down then, too.
"""

import builtins
import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any, cast

from horsies.tasks.node import WorkflowNode


class ClassBody(dict[str, Any]):
    """The namespace of a class body. `frame` is where the class is written."""

    def __init__(self, frame: FrameType, inherited: Mapping[str, WorkflowNode[Any]]) -> None:
        super().__init__()
        around = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}  # a function, not a class
        self._module = frame.f_globals
        self._outside: dict[str, Any] = {**vars(builtins), **self._module, **around}
        self._nodes: dict[str, WorkflowNode[Any]] = {}
        for name, node in inherited.items():
            self._lend(name, node)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if isinstance(value, WorkflowNode):
            self._lend(name, cast("WorkflowNode[Any]", value))

    def _lend(self, name: str, node: WorkflowNode[Any]) -> None:
        self._nodes[name] = node
        if name not in self._outside:
            self._module[name] = node

    def take_back(self) -> dict[str, Any]:
        """What the names of the nodes stand for outside, where they stand for something."""
        for name, node in self._nodes.items():
            if name not in self._outside and self._module.get(name) is node:
                del self._module[name]
        return {name: self._outside[name] for name in self._nodes if name in self._outside}


def nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """By their names, those of its base classes first."""
    found: dict[str, Any] = {}
    for cls in reversed(definition.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, WorkflowNode) or name in found:
                found[name] = value
    return {name: node for name, node in found.items() if isinstance(node, WorkflowNode)}


def once(nodes: dict[str, WorkflowNode[Any]]) -> dict[str, WorkflowNode[Any]]:
    """Each node by its first name."""
    first = {id(node): name for name, node in reversed(nodes.items())}
    return {name: node for name, node in nodes.items() if first[id(node)] == name}
