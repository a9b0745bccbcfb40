"""One module whose tensors are replaced for a run: what the run left in it, and what it may not."""

import functools
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final

from torch import nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL, ModuleState
from foretrace.ir.pydata.members import own_kind
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.absent_device import Absent
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.python_state.reads.object_parts import REGISTERED as STATE
from foretrace.python_state.snapshot.changes import EachByItsKey, content_changes, filled
from foretrace.python_state.snapshot.objects import ATOMS, EMPTY, Snapshot, changes_in
from foretrace.python_state.snapshot.torch_objects import ModuleSnapshot

TABLES = frozenset({"_parameters", "_buffers", "_modules"})
REGISTERED = tuple(
    name
    for name, item in vars(nn.Module()).items()
    if isinstance(item, (dict, set)) and name != "_modules"
)
"""Where a module keeps parameters, buffers and hooks"""
NO_PLACES = frozenset(REGISTERED)
"""What `check_registered` looks at"""
NAMED: Final = MappingProxyType({"_modules": EachByItsKey("_modules")})
"""Tables of which an entry is an attribute of the module"""


class SwappedModule:
    """One module's attributes, with what its dicts and lists contained."""

    def __init__(self, path: str, module: nn.Module, kept: ModuleSnapshot) -> None:
        self.path, self.module, self.kept = path, module, kept
        self._still: bool | None = None

    def state(self) -> ModuleState:
        """How the module was when the run began, with the copies that are there."""
        contents = self.kept.contents
        tables = {name: contents[name].before for name in STATE if name in contents}
        return ModuleState(self.path, self.module, self.module.training, tables)

    def registered(self, name: str) -> Any:
        """What one of the module's own tables had."""
        content = self.kept.contents.get(name)
        return {} if content is None else content.before

    @property
    def still(self) -> bool:
        """Whether the run has bound no attribute, and filled nothing that was empty."""
        if self._still is None:
            self._still = self.kept.intact and self.kept.attributes.intact
        return self._still

    def parts(self) -> Iterator[Snapshot]:
        """What is to be put back: where nothing was bound, as far as was looked, contents alone."""
        return iter(self.kept.contents.values()) if self._still else self.kept.parts()

    def changes(self) -> Iterator[Change]:
        """What the run has changed in plain attributes."""
        kept = self.kept
        for name, content in kept.contents.items():
            if name not in NO_PLACES:
                yield from changes_in(content, functools.partial(_named, NAMED.get(name, name)))
        if self.still:
            return
        for change in changes_in(kept.attributes, str):
            if change.place.name not in NO_PLACES:
                yield change
        for name, item in kept.attributes.before.items():
            if name in NO_PLACES or all(item is not each for each in filter(None, kept.empty)):
                continue
            if isinstance(item, dict):
                yield from content_changes(NAMED.get(name, name), item, {}, item)
            else:
                yield filled(name, item, own_kind(item)())

    def touched(self) -> Iterator[tuple[str, Any]]:
        """Plain attributes that are or contain something else now, as far as a glance says."""
        before, contents = self.kept.attributes.before, self.kept.contents
        for name, now in vars(self.module).items() if not self.still else ():
            tensor = type(now) is Abstract or type(now) is Absent
            if name not in TABLES and (tensor or type(now) not in ATOMS):
                filled = name in contents or (type(now) in EMPTY and now)
                if now is not before.get(name) or filled:
                    yield name, now
        for name in contents if self.still else ():
            if name not in TABLES:
                yield name, before[name]

    def check_registered(self, lines: Lines) -> None:
        """Refuse a program after which the module has other parameters, buffers or hooks."""
        space = vars(self.module)
        contents = self.kept.contents
        for name in filter(contents.__contains__, REGISTERED) if self.still else REGISTERED:
            before, now = self.registered(name), space[name]
            if (before or now) and _present(before) != _present(now):
                what = "parameters or buffers" if name in TABLES else "hooks"
                changed = _present(before) ^ _present(now)
                at = [lines.binding(str(each), type(self.module)) for each in changed]
                raise Refusal(
                    f"the program registers or removes {what}"
                    f" of {self.path or type(self.module).__name__}",
                    kind="side effect",
                    at=next(filter(None, at), None) or lines.calling("register_", "hook"),
                    module=self.named(),
                    do=("do it before the captured program is called", FIRST_CALL),
                )

    def check_parameters(self, stands: dict[int, Any], lines: Lines) -> None:
        """Refuse a program after which one of the parameters is another tensor."""
        now = torch_api.tensor_tables(self.module)[0]
        for name, before in self.registered("_parameters").items():
            kept = now[name] is before or now[name] is stands.get(id(before))
            if before is not None and not (kept or wraps(type(before))):
                raise Refusal(
                    f"the program binds the parameter `{name}` of"
                    f" {self.path or type(self.module).__name__} to another tensor",
                    kind="side effect",
                    at=lines.binding(name, type(self.module)),
                    module=self.named(),
                    do=(
                        "write to the parameter that there is: parameter.copy_(new) under no_grad",
                        FIRST_CALL,
                    ),
                )

    def named(self) -> list[str]:
        """The module, as a refusal names it."""
        return [self.path or type(self.module).__name__]

    def full_name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _named(name: str, _: Any) -> str:
    return name


def _present(registered: dict[Any, Any] | set[Any]) -> set[Any]:
    """Names of what is registered; one may be registered as None."""
    if isinstance(registered, set):
        return registered
    return {name for name, item in registered.items() if item is not None}
