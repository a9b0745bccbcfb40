"""What a capture found in modules and in Python state outside, as guards.

Modules: train() or eval(), which submodules, which hooks, which attributes that the program's code
mentions. Outside: the globals and closure cells that the code reads. Plain data is compared by
value; functions, classes and all else by identity, and then the attributes of an object that the
code mentions.
"""

import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from foretrace import torch_api
from foretrace.runtime.checks import Check, value_check
from foretrace.runtime.source import Source
from foretrace.trace.outside import MISSING, Outside, origin_of
from foretrace.trace.plain import plain

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = frozenset({"_parameters", "_buffers", "_modules", "training", *HOOKS})
DEEPEST = 4
"""How far attributes of attributes are followed"""


class Facts:
    """Collects the checks; each object is looked at once."""

    def __init__(self, source: Source, mentioned: Iterable[str]) -> None:
        self.source, self.mentioned = source, frozenset(mentioned) | {"forward"}
        self.checks: list[Check] = []
        self._seen: set[int] = set()
        self._on_classes: set[tuple[type, str]] = set()

    def modules(self, modules: list[tuple[str, nn.Module]]) -> None:
        """The modules of the program."""
        self._seen |= {id(module) for _, module in modules}
        for path, module in modules:
            self._module(path, module)

    def outside(self, outside: Outside) -> None:
        """Globals and closure cells."""
        for place in outside.places.values():
            item = place.before
            if isinstance(place.holder, dict):
                held = f"{self.source.bind(place.holder, 'globals_')}[{place.name!r}]"
                name = f"the global {place.name}"
            else:
                held = f"{self.source.bind(place.holder, 'cell')}.cell_contents"
                name = f"the closed-over {place.name}"
            if item is not MISSING:
                self._value(held, name, item, DEEPEST)
            elif isinstance(place.holder, dict):
                space = self.source.bind(place.holder, "globals_")
                self._add(f"{place.name!r} not in {space}", f"{name} is bound now")

    # ---- modules -----------------------------------------------------------------------------

    def _module(self, path: str, module: nn.Module) -> None:
        space, path = self.source.bind(vars(module), "attributes"), path or type(module).__name__
        other = "eval()" if module.training else "train()"
        self._add(
            f"{space}['training'] is {module.training}",
            f"{path} is in {other} mode, unlike in the capture",
        )
        self._children(path, module)
        self._hooks(path, module)
        for name, item in vars(module).items():
            if name not in TABLES and name in self.mentioned:
                self._value(f"{space}[{name!r}]", f"{path}.{name}", item, DEEPEST)
        self._class_attributes(path, module, space)

    def _children(self, path: str, module: nn.Module) -> None:
        children = torch_api.submodule_table(module)
        tables = {
            self.source.bind(table, "table"): table
            for table in (*torch_api.tensor_tables(module), children)
        }
        more = f"{path} has other parameters, buffers or submodules"
        none = [here for here, table in tables.items() if not table]
        if none:
            self._add(f"not ({' or '.join(none)})", more)
        for here, table in tables.items():
            if table:
                self._add(f"len({here}) == {len(table)}", more)
            for name, item in table.items():
                if item is None:
                    self._add(f"{here}[{name!r}] is None", f"{path}.{name} is no longer None")
                elif table is children:
                    known = self.source.bind(item, "module")
                    self._add(f"{here}[{name!r}] is {known}", f"{path}.{name} is another module")

    def _hooks(self, path: str, module: nn.Module) -> None:
        tables = [vars(module)[name] for name in HOOKS]
        names = [self.source.bind(table, "hooks") for table in tables]
        if not any(tables):
            self._add(f"not ({' or '.join(names)})", f"{path} has a hook that the capture lacked")
            return
        for name, table in zip(names, tables, strict=True):
            hooks = self.source.bind(tuple(table.values()), "hooks")
            self._add(f"tuple({name}.values()) == {hooks}", f"{path} has other hooks")

    def _class_attributes(self, path: str, module: nn.Module, space: str) -> None:
        """Plain data that the code may find on the class; an attribute would hide it."""
        for kind in type(module).__mro__:
            if kind is nn.Module:
                return
            for name, item in vars(kind).items():
                hidden = name not in self.mentioned or name in vars(module)
                if hidden or name.startswith("__") or not plain(item):
                    continue
                self._add(f"{name!r} not in {space}", f"{path}.{name} hides that of the class")
                if (kind, name) in self._on_classes or isinstance(item, types.FunctionType):
                    continue
                self._on_classes.add((kind, name))
                owner = self.source.bind(kind, kind.__name__)
                self._value(f"{owner}.{name}", f"{kind.__name__}.{name}", item, 0)

    # ---- values ------------------------------------------------------------------------------

    def _value(self, place: str, name: str, item: Any, depth: int) -> None:
        self.checks.append(value_check(self.source, place, name, item))
        if depth and not plain(item) and id(item) not in self._seen:
            self._seen.add(id(item))
            if isinstance(item, nn.Module):
                self._met_module(name, item)
                return
            for held, attribute, inner in self._attributes(item):
                self._value(held, f"{name}.{attribute}", inner, depth - 1)

    def _met_module(self, name: str, module: nn.Module) -> None:
        """A module that is not the program's own: its tensors are constants of the graph."""
        self.modules(
            [(f"{name}.{path}".rstrip("."), each) for path, each in module.named_modules()]
        )
        for each in module.modules():
            for table in torch_api.tensor_tables(each):
                here = self.source.bind(table, "table")
                for key, tensor in table.items():
                    place = f"{here}[{key!r}]"
                    self.checks.append(value_check(self.source, place, f"{name}.{key}", tensor))

    def _attributes(self, item: Any) -> Iterator[tuple[str, str, Any]]:
        """What the code may read of an object: its attributes that the code mentions."""
        space = getattr(item, "__dict__", {})
        if isinstance(item, (torch.Tensor, types.FunctionType)) or _of_a_library(item):
            return
        for name in sorted(self.mentioned & space.keys()):
            if type(space) is dict:
                yield f"{self.source.bind(space, 'attributes')}[{name!r}]", name, space[name]
            elif isinstance(item, type) and name.isidentifier() and plain(space[name]):
                yield f"{self.source.bind(item, item.__name__)}.{name}", name, space[name]

    def _add(self, condition: str, reason: str) -> None:
        self.checks.append(Check(condition, repr(reason)))


def _of_a_library(item: Any) -> bool:
    """Whether it is a module or class of torch, Python or ours: its names stay as they are."""
    if isinstance(item, type):
        item = sys.modules.get(item.__module__)
    elif not isinstance(item, types.ModuleType):
        return False
    file = getattr(item, "__file__", None)
    return file is None or origin_of(file) != "user"
