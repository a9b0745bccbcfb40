"""The table, and what a way out has to show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import foretrace
from tests.support.bits import differences
from tests.support.compare import same_as_eager

Program = Callable[..., Any]
Way = Callable[[], None] | str
"""Shows that a way out works; a text where it is no change of a program, and why"""


@dataclass(frozen=True)
class Case:
    """A refusal, asked for."""

    kind: str
    site: str
    ask: Callable[[], object]
    at: Program | None
    """the program whose line `# here` is named; None: the line that asks, in this package"""
    ways: tuple[Way, ...]


CASES: dict[str, Case] = {}
EXCUSED: dict[str, str] = {
    "recording/filling.py:check_apart": "tests/steps/test_filling.py",
    "recording/filling.py:check_none_left": "it runs once more: tests/steps/test_filling.py",
    "recording/filling.py:note": "it runs once more: tests/steps/test_filling.py",
    "cli/arguments.py:error": "the command line",
    "cli/load.py:_module": "the command line",
    "cli/debugging.py:_place": "the command line: tests/unit/cli",
    "cli/debugging.py:_tell": "the command line: tests/unit/cli",
    "cli/explain.py:run": "the command line: tests/unit/cli",
    "cli/debugging.py:stop_at": "the command line: tests/unit/cli",
    "cli/dispatch.py:_wrong": "the command line: tests/unit/cli",
    "cli/dispatch.py:step": "the command line: tests/unit/cli",
    "dispatcher/named.py:_unknown": "a wrong call: tests/unit/dispatcher",
    "dispatcher/named.py:modes": "a wrong call: tests/unit/dispatcher",
    "dispatcher/named.py:operator": "a wrong call: tests/unit/dispatcher",
    "cli/cuts.py:of_file": "the command line: tests/artifact/test_command.py",
    "cli/load.py:_existing": "the command line",
    "cli/load.py:_from_module": "the command line",
    "cli/load.py:_function": "the command line",
    "cli/load.py:_called": "the command line",
    "compare/raised.py:of": "the command line: tests/unit/compare/test_check.py",
    "compat/aot.py:_check_call": "a wrong call",
    "compat/aot_autograd.py:_check": "a wrong call",
    "compat/compile.py:_check_options": "a wrong call",
    "pieces/region.py:region": "a wrong call",
    "pieces/partial.py:_check_count": "nobody sees it: that call runs as Python",
    "compat/compile.py:_check": "a wrong call",
    "compat/dynamo.py:_check": "a wrong call",
    "compat/export.py:_check_call": "a wrong call",
    "recording/setup.py:_check_call": "a wrong call",
    "recording/torch_state.py:check_whole": "in a forked child: tests/unit/forks",
    "recording/setup.py:check_values": "a wrong call",
    "program/making.py:_graph": "a wrong call",
    "alignment/diff.py:of": "a wrong call: tests/explained/test_diff.py",
    "alignment/diff.py:_check_related": "a wrong call: tests/explained/test_diff.py",
    "alignment/measured.py:check_runs_here": "a wrong call: tests/explained/test_diff.py",
    "explain/why.py:_find": "a wrong call",
    "explain/why.py:explain": "a wrong call",
    "partition/policies.py:check_policy": "a wrong call",
    "passes/select.py:check_selectors": "a wrong call",
    "rules/table.py:rule_name": "a wrong call",
    "backends/by_name.py:building": "a wrong call",
    "runtime/calls.py:run_half": "a wrong call",
    "runtime/tangents.py:_number": "strides of what no size of a tangent tells; `agree` follows",
    "symbols/shapes.py:wrong_shapes": "a wrong call",
    "symbols/specs.py:of_function": "a wrong call",
    "recording/setup.py:_check_ranks": "a switch of torch's: tests/unit/recording/test_ranks.py",
    "targets/profile.py:_unknown": "a wrong call",
    "mutation/functionalize.py:functionalize": "what writes has a form, if need be torch's",
    "trace/calls.py:submodule_calls": "a wrong call",
    "backends/for_dynamo.py:_broken": "Dynamo: tests/against_eager/test_storage_offset.py",
    "backends/compilers.py:_check": "behind Dynamo, in a backward",
    "symbols/foreign.py:_check_backed": "behind Dynamo: tests/dropin/test_dynamo.py",
    "runtime/compiled.py:not_copied": "a wrong call",
    "trace/generators.py:check_states": "tests/refusals/test_left_as_it_was.py has its programs",
    "runtime/compiled.py:_check_later": "nobody is told: the call runs as Python",
    "runtime/compiled.py:_unstable": "a guard of what changes by itself, as by another thread",
    "targets/attention.py:_order": "tests/unit/targets/test_attention_choice.py: a caller's target",
    "python_state/restoring.py:put_back": "tests/unit/support/test_unchanged.py",
    "branches/merge.py:_refused": "tests/refusals/test_both_sides.py has its programs",
    "branches/sides.py:refused": "tests/refusals/test_both_sides.py has its programs",
    "asking/path.py:_too_many": "tests/refusals/test_both_sides.py has its programs",
    "compat/export.py:_check_not_called": "a wrong call",
    "recording/setup.py:check_branches": "a wrong call",
    "passes/asked_again.py:_outside": "told as the reason why a small size does not hold",
    "partition/partial.py:_not_saved": "no program is known: what is not saved is computed again",
    "wrappers/edges.py:_kept": "no compiler is asked for ops that are kept whole",
    "wrappers/edges.py:_more": "a gradient of another class, which holds more, behind Inductor",
    "tensors/wrapped.py:_other_tangent": "behind Inductor, in a backward",
    "ir/verify.py:_raise": "a bug of foretrace; tests/unit/ir/test_verify.py",
    "ops/probe.py:_size": "no operator of torch 2.13 is known to come there",
    "torch_api/fake.py:load_dynamo": "of the machine: tests/refusals/test_machine.py",
    "artifact/schema.py:manifest_of": "a file: tests/artifact/test_damaged.py",
    "artifact/archive.py:read": "a file: tests/artifact/test_damaged.py",
    "artifact/archive.py:_not_written": "a wrong call: tests/artifact/test_loaded.py",
    "artifact/archive.py:_beside": "a file: tests/artifact/test_damaged.py",
    "artifact/tensors.py:_memory": "a file: tests/artifact/test_damaged.py",
    "artifact/loading.py:_check_inputs": "a file: tests/artifact/test_loaded.py",
    "artifact/saving.py:save": "no program is known that comes there",
    "artifact/saving.py:check_saved": "a wrong call: tests/artifact/test_loaded.py",
    "records/malformed.py:damaged": "a file: tests/artifact/test_damaged.py",
    "records/spelled.py:_operator": "a file: tests/artifact/test_operators.py",
    "records/spelled.py:check_schemas": "a file: tests/artifact/test_operators.py",
    "records/told.py:asserted": "a file: tests/artifact/test_round_trip.py",
    "records/told.py:__call__": "a file: tests/artifact/test_loaded.py",
    "records/open_sizes.py:symbols_json": "a front end's program is not saved",
    "records/numbers.py:_unknown": "no size of torch 2.13 is known to have such a function",
    "loaded.py:_not_stored": "a wrong call: tests/artifact/test_loaded.py",
    "resumed/objects.py:other_state": "a wrong call: tests/artifact/test_state.py",
    "resumed/objects.py:step": "a wrong call: tests/artifact/test_state.py",
    "resumed/by_role.py:__delitem__": "a wrong call: tests/artifact/test_state.py",
    "program/program.py:_stored": "a wrong call: tests/artifact/test_loaded.py",
    "rules/tape.py:_value": "no formula of torch 2.13 is known to come there",
}  # fmt: skip
"""Places that no line of a program leads to, and why"""


def refuses(
    kind: str, site: str, ask: Callable[[], object], at: Program | None, *ways: Way
) -> None:
    """A row of the table; its name is the site, numbered."""
    count = sum(name.partition(" ")[0] == site for name in CASES)
    CASES[f"{site} {count}" if count else site] = Case(kind, site, ask, at, ways)


def captures(fn: Program, *args: Any, **options: Any) -> Callable[[], object]:
    """`foretrace.capture`, later."""
    return lambda: foretrace.capture(fn, args, **options)


def compiles(fn: Program, *args: Any, **options: Any) -> Callable[[], object]:
    """A call of `foretrace.compile`, later."""
    return lambda: foretrace.compile(fn, **options, fullgraph=True)(*args)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Program) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def exports(fn: Program, *args: Any, **options: Any) -> Callable[[], object]:
    """`foretrace.export`, later."""
    module = fn if isinstance(fn, nn.Module) else Calls(fn)
    return lambda: foretrace.export(module, args, **options)


def cuts(fn: Program, *args: Any, cut: str = "joint", **options: Any) -> Callable[[], object]:
    """A cut of a capture, later."""
    return lambda: foretrace.capture(fn, args).cut(cut, **options)


def same(given: object, expected: object) -> None:
    """To the last bit."""
    assert list(differences(expected, given, "")) == []


def captured(fn: Program, *args: Any, **options: Any) -> Callable[[], None]:
    """The program is captured, and its export cut gives what eager gives."""
    return lambda: same(foretrace.capture(fn, args, **options).cut("export")(*args), fn(*args))


def compiled(fn: Program, *args: Any, **options: Any) -> Callable[[], None]:
    """The program is compiled, and gives what eager gives."""
    return lambda: same(foretrace.compile(fn, **options, fullgraph=True)(*args), fn(*args))


def exported(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is exported, and gives what eager gives."""
    module = fn if isinstance(fn, nn.Module) else Calls(fn)
    return lambda: same(foretrace.export(module, args).module()(*args), fn(*args))


def guarded(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is exported with guards on values, and gives what eager gives."""

    def follow() -> None:
        with pytest.warns(UserWarning, match="asserts each answer"):
            exported(fn, *args)()

    return follow


def drawn(fn: Program, *args: Any) -> Callable[[], None]:
    """The program is captured, and from the same random numbers gives what eager gives."""

    def follow() -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            cut = foretrace.capture(fn, args).cut("export")
            found = cut(*args)
            torch.manual_seed(0)
            same(found, fn(*args))

    return follow


def trained(fn: Program, *args: Any, loss: int | None = 0) -> Callable[[], None]:
    """The joint cut gives the outputs and the gradients of eager."""
    return lambda: same_as_eager(fn, args, loss=loss, cuts=("joint",))


def once_before(fn: Program, *args: Any) -> Callable[[], None]:
    """Called once eagerly, the program is captured."""

    def follow() -> None:
        fn(*args)
        captured(fn, *args)()

    return follow
