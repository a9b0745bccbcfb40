"""The table of refusals, and how a row of it is stated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

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
    "session/run/append_only.py:check_new": "tests/steps/test_filling.py",
    "session/run/append_only.py:check_none_left": "it runs once more: tests/steps/test_filling.py",
    "session/run/append_only.py:note": "it runs once more: tests/steps/test_filling.py",
    "python_state/effects/leaks.py:check_numbers": "it runs once more: tests/against_eager/"
    "test_counts_left.py",
    "python_state/effects/leaks.py:check_no_number": "it runs once more: tests/against_eager/"
    "test_counts_left.py",
    "python_state/reads/backward_reads.py:_check_left": "tests/against_eager/"
    "test_backward_reads.py",
    "tracer/recorder/composite_bodies.py:_check_numbers": "it runs once more: tests/against_eager/"
    "test_operators_of_users.py",
    "runtime/backends/autograd_function.py:check": "tests/against_eager/test_backward_reads.py",
    "frontends/program/other_graphs.py:_refuse_memory": "tests/dropin/test_aot_export.py",
    "frontends/cli/arguments.py:error": "the command line",
    "frontends/cli/load.py:_module": "the command line",
    "frontends/cli/debugging.py:_place": "the command line: tests/unit/frontends/cli",
    "frontends/cli/debugging.py:_print_stop": "the command line: tests/unit/frontends/cli",
    "frontends/cli/explain.py:run": "the command line: tests/unit/frontends/cli",
    "frontends/cli/debugging.py:stop_at": "the command line: tests/unit/frontends/cli",
    "frontends/cli/dispatch.py:_wrong": "the command line: tests/unit/frontends/cli",
    "frontends/cli/dispatch.py:step": "the command line: tests/unit/frontends/cli",
    "inspect/dispatcher/names.py:_unknown": "a wrong call: tests/unit/inspect/dispatcher",
    "inspect/dispatcher/names.py:modes": "a wrong call: tests/unit/inspect/dispatcher",
    "inspect/dispatcher/names.py:operator": "a wrong call: tests/unit/inspect/dispatcher",
    "frontends/cli/capture_args.py:of_file": "the command line: tests/artifact/test_command.py",
    "frontends/cli/check.py:_for_target": "the command line: tests/unit/inspect/dispatcher/"
    "test_on_target.py",
    "frontends/cli/load.py:_existing": "the command line",
    "frontends/cli/load.py:_from_module": "the command line",
    "frontends/cli/load.py:_function": "the command line",
    "frontends/cli/load.py:_called": "the command line",
    "inspect/check/user_errors.py:of": "the command line: tests/unit/inspect/check/test_check.py",
    "frontends/torch_compat/aot_export.py:_check_call": "a wrong call",
    "frontends/torch_compat/aot_autograd.py:_check": "a wrong call",
    "frontends/torch_compat/compile.py:_check_options": "a wrong call",
    "runtime/graph_breaks/region.py:region": "a wrong call",
    "runtime/graph_breaks/partial_capture.py:_check_count": (
        "nobody sees it: that call runs as Python"
    ),
    "frontends/torch_compat/compile.py:_checked": "a wrong call",
    "frontends/torch_compat/aot_autograd.py:_check_options": "a wrong call",
    "frontends/torch_compat/dynamo.py:_check": "a wrong call",
    "frontends/torch_compat/export.py:_check_call": "a wrong call",
    "session/run/setup.py:_check_call": "a wrong call",
    "session/patches/collector.py:check_whole": "in a forked child: tests/unit/forks",
    "session/run/setup.py:check_values": "a wrong call",
    "frontends/program/make_cut.py:_no_cut": "a wrong call",
    "frontends/program/make_cut.py:_no_numbers": "a wrong call",
    "inspect/diff/diff.py:of": "a wrong call: tests/explained/test_diff.py",
    "inspect/diff/diff.py:_check_related": "a wrong call: tests/explained/test_diff.py",
    "inspect/diff/numeric.py:check_runs_here": "a wrong call: tests/explained/test_diff.py",
    "inspect/explain/explain.py:_find": "a wrong call",
    "inspect/explain/explain.py:explain": "a wrong call",
    "lowering/partition/policies.py:check_policy": "a wrong call",
    "lowering/cuts/selectors.py:check_selectors": "a wrong call",
    "frontends/program/capture.py:rule_name": "a wrong call",
    "runtime/adapters/adapter.py:check_installed": "a wrong call: tests/unit/runtime/adapters",
    "runtime/adapters/adapter.py:_refusal": "a wrong call: tests/unit/runtime/adapters",
    "runtime/adapters/parts.py:_refusal": "of a package's compiler: tests/unit/runtime/adapters",
    "runtime/backends/by_name.py:compiler_named": "a wrong call",
    "runtime/calls/run_cut.py:run_half": "a wrong call",
    "runtime/calls/tangents.py:_number": (
        "strides of what no size of a tangent tells; `agree` follows"
    ),
    "ir/symbols/dynamic_shapes.py:wrong_shapes": "a wrong call",
    "frontends/program/capture.py:of_function": "a wrong call",
    "session/run/setup.py:_check_ranks": (
        "a switch of torch's: tests/unit/session/run/test_ranks.py"
    ),
    "operators/targets/profile.py:_unknown": "a wrong call",
    "tracer/functionalization/functionalize.py:functionalize": (
        "what writes has a form, if need be torch's"
    ),
    "tracer/recorder/module_calls.py:submodule_calls": "a wrong call",
    "runtime/backends/dynamo.py:_broken": "Dynamo: tests/against_eager/test_storage_offset.py",
    "runtime/backends/compilers.py:_check": "behind Dynamo, in a backward",
    "ir/symbols/frontend_symbols.py:_check_backed": "behind Dynamo: tests/dropin/test_dynamo.py",
    "runtime/calls/compiled.py:not_copied": "a wrong call",
    "session/patches/rng.py:check_states": "tests/refusals/test_left_as_it_was.py has its programs",
    "runtime/calls/compiled.py:_check_later": "nobody is told: the call runs as Python",
    "runtime/calls/compiled.py:_unstable": (
        "a guard of what changes by itself, as by another thread"
    ),
    "operators/targets/build.py:wrong_file": "a wrong call",
    "operators/targets/build.py:check_kernel": (
        "tests/against_eager/test_target_files.py: a caller's file"
    ),
    "frontends/cli/targets.py:_wrong_use": "a wrong call",
    "frontends/cli/targets.py:_add": "a wrong call",
    "operators/targets/sdpa.py:_table": (
        "tests/unit/operators/targets/test_attention_choice.py: a caller's target"
    ),
    "python_state/snapshot/restore.py:put_back": "tests/unit/support/test_unchanged.py",
    "session/both_branches/merge.py:_refused": "tests/refusals/test_both_sides.py has its programs",
    "session/both_branches/cond.py:refused": "tests/refusals/test_both_sides.py has its programs",
    "tracer/data_dependence/answer_path.py:_too_many": (
        "tests/refusals/test_both_sides.py has its programs"
    ),
    "frontends/torch_compat/export.py:_check_not_called": "a wrong call",
    "session/run/setup.py:check_branches": "a wrong call",
    "lowering/pipelines/partial_tangents.py:_not_saved": (
        "no program is known: what is not saved is computed again"
    ),
    "lowering/subclasses/boundary.py:_kept": "no compiler is asked for ops that are kept whole",
    "lowering/subclasses/boundary.py:_more": (
        "a gradient of another class, which holds more, behind Inductor"
    ),
    "operators/abstract_tensors/subclass_types.py:_other_tangent": "behind Inductor, in a backward",
    "lowering/pipelines/verify.py:_raise": (
        "a bug of foretrace; tests/unit/lowering/pipelines/test_verify.py"
    ),
    "operators/inference/numeric_probe.py:_size": (
        "no operator of torch 2.13 is known to come there"
    ),
    "torch_api/fake.py:load_dynamo": "of the machine: tests/refusals/test_machine.py",
    "serialization/archive/manifest.py:manifest_of": "a file: tests/artifact/test_damaged.py",
    "serialization/archive/zip_file.py:read": "a file: tests/artifact/test_damaged.py",
    "serialization/archive/zip_file.py:_not_written": "a wrong call: tests/artifact/test_loaded.py",
    "serialization/archive/zip_file.py:_beside": "a file: tests/artifact/test_damaged.py",
    "serialization/archive/tensors.py:_memory": "a file: tests/artifact/test_damaged.py",
    "serialization/archive/loading.py:_check_inputs": "a file: tests/artifact/test_loaded.py",
    "serialization/archive/saving.py:save": "no program is known that comes there",
    "serialization/archive/saving.py:_check_call": "a wrong call: tests/artifact/test_loaded.py",
    "serialization/schema/errors.py:damaged": "a file: tests/artifact/test_damaged.py",
    "serialization/schema/names.py:_operator": "a file: tests/artifact/test_operators.py",
    "serialization/schema/names.py:check_schemas": "a file: tests/artifact/test_operators.py",
    "frontends/program/cut.py:asserted": "a file: tests/artifact/test_round_trip.py",
    "serialization/schema/opaque.py:__call__": "a file: tests/artifact/test_loaded.py",
    "serialization/schema/shape_env_json.py:symbols_json": "a front end's program is not saved",
    "serialization/schema/sympy_json.py:_unknown": (
        "no size of torch 2.13 is known to have such a function"
    ),
    "frontends/program/load.py:_not_stored": "a wrong call: tests/artifact/test_loaded.py",
    "serialization/state/state_objects.py:other_state": (
        "a wrong call: tests/artifact/test_state.py"
    ),
    "serialization/state/state_objects.py:step": "a wrong call: tests/artifact/test_state.py",
    "serialization/state/named_tensors.py:__delitem__": (
        "a wrong call: tests/artifact/test_state.py"
    ),
    "frontends/program/exported.py:check_kind": "a wrong call",
    "lowering/cuts/decomposition_tracer.py:table_at": (
        "a wrong call: tests/against_eager/test_core_level.py"
    ),
    "frontends/program/program.py:_stored": "a wrong call: tests/artifact/test_loaded.py",
    "autograd/derivatives/formula_tracer.py:_value": (
        "no formula of torch 2.13 is known to come there"
    ),
}
"""Places that no line of a program leads to, and why"""


@dataclass(frozen=True)
class Ask:
    """An entry point, to be called with a program later."""

    program: Program
    call: Callable[[], object]

    def __call__(self) -> object:
        """Call it; this raises the refusal."""
        return self.call()

    @property
    def marked(self) -> Program:
        """The function whose source has the line `# here`."""
        is_module = isinstance(self.program, nn.Module)
        return type(self.program).forward if is_module else self.program


UNSTATED: Any = object()


@dataclass(frozen=True)
class Site:
    """A place in foretrace that refuses, by the kind of its refusals."""

    kind: str
    site: str

    def when(self, ask: Callable[[], object], *ways: Way, at: Program | None = UNSTATED) -> None:
        """Add a row to the table; its name is the site, numbered."""
        if at is UNSTATED:
            assert isinstance(ask, Ask), f"{self.site}: say with at= which program is marked"
            at = ask.marked
        count = sum(name.partition(" ")[0] == self.site for name in CASES)
        name = f"{self.site} {count}" if count else self.site
        CASES[name] = Case(self.kind, self.site, ask, at, ways)


refuses = Site
"""`refuses(kind, site).when(captures(program, x), way, ...)` is a row of the table"""
