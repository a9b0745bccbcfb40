"""The module call graph of an ExportedProgram: the program's signature, then submodules."""

from typing import Any

import torch
from torch import fx, nn
from torch.export import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ArgumentSpec

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.arguments import positional_names
from foretrace.ir.values.value import Value
from foretrace.lowering.emit.export_graph import Exported, argument_of
from foretrace.tracer.recorder.module_calls import CallSite


def module_calls(
    recorded: Recording,
    mod: nn.Module,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    sites: list[CallSite],
    exported: Exported,
) -> list[ModuleCallEntry]:
    """An entry for each submodule; those of `sites` have the signature of that call.

    Raises:
        Refusal: the graph has no node for an input or output of a submodule.
    """
    args, kwargs = example
    positional = [name.replace(".", "_") for name in positional_names(mod, len(args))]
    signatures = {
        "": ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=_sizes_as_tuples(recorded.requires.in_structure.spec),
            out_spec=_sizes_as_tuples(recorded.out_structure.spec),
            forward_arg_names=[*positional, *kwargs],
        )
    }
    for site in sites:
        _, at, number = exported.stacks.key(site.call).partition("@")
        signatures[site.call.path + at + number] = _of_site(site, exported)
    paths = [path for path, _ in mod.named_modules(remove_duplicate=False)]
    again = [path for path in signatures if path not in paths]
    return [ModuleCallEntry(path, signatures.get(path)) for path in (*paths, *again)]


def _sizes_as_tuples(spec: torch_api.TreeSpec) -> torch_api.TreeSpec:
    """The structure as torch.export has it, whose copies of arguments have a tuple for a Size."""
    if torch.Size not in torch_api.node_types(spec):
        return spec
    inside = [_sizes_as_tuples(each) for each in spec.children()]
    kind = tuple if spec.type is torch.Size else spec.type
    return torch_api.TreeSpec(kind, spec.context, inside)


def _of_site(site: CallSite, exported: Exported) -> ModuleCallSignature:
    if site.out_spec is None:
        raise AssertionError(site)
    inputs = [_argument(leaf, site, exported) for leaf in site.inputs]
    outputs = [_argument(leaf, site, exported) for leaf in site.outputs]
    return ModuleCallSignature(inputs, outputs, site.in_spec, site.out_spec)


def _argument(leaf: Any, site: CallSite, exported: Exported) -> ArgumentSpec:
    found: Any = exported.nodes.get(leaf) if isinstance(leaf, Value) else leaf
    if not isinstance(found, fx.Node | int | float | str | None):
        raise Refusal(
            f"a call of {site.call} has {found!r:.60} where the graph has nothing",
            kind="wrong call",
            do=f"leave {site.call.path!r} out of preserve_module_call_signature",
        )
    return argument_of(found)
