"""The rule by which a kernel serves an operator at a key.

Source: OperatorEntry::computeDispatchTableEntryWithDebug in
aten/src/ATen/core/dispatch/OperatorEntry.cpp, and `resolve_key` in torch/_ops.py, which follows it.
"""

from collections.abc import Collection
from typing import Final

from foretrace import torch_api

DIRECT: Final = "direct"
EXPLICIT_NON_FUNCTIONAL: Final = "composite explicit, not functional"
EXPLICIT: Final = "composite explicit"
IMPLICIT: Final = "composite implicit"
NESTED: Final = "composite implicit, nested"
AMBIGUOUS: Final = "ambiguous"
AUTOGRAD: Final = "autograd"
BATCHED: Final = "batched decomposition"
FALLBACK: Final = "backend fallback"
MISSING: Final = "missing"

ALIASES: dict[str, str] = {
    EXPLICIT_NON_FUNCTIONAL: "CompositeExplicitAutogradNonFunctional",
    EXPLICIT: "CompositeExplicitAutograd",
    NESTED: "CompositeImplicitAutogradNestedTensor",
    IMPLICIT: "CompositeImplicitAutograd",
    AUTOGRAD: "Autograd",
    BATCHED: "FuncTorchBatchedDecomposition",
}
"""The alias key of each rule that has one, in the order in which they are tried"""

OTHER: Final = "AutogradOther"


def rule_at(
    key: str, has: Collection[str], fallbacks: Collection[str], *, python: bool = False
) -> tuple[str, str]:
    """The rule by which an operator is served at a key, and the key of the kernel.

    Args:
        key: a runtime key, or Undefined.
        has: the keys, alias keys included, for which the operator has a kernel.
        fallbacks: the keys that have a kernel for every operator.
        python: by torch's Python resolver, which has one more condition.
    """
    if key in has:
        return DIRECT, key
    backend = ALIASES[EXPLICIT] in has or bool(torch_api.backends_of(key) & set(has))
    for rule, alias in ALIASES.items():
        if alias not in has or not _includes(rule, key, alias):
            continue
        if rule == IMPLICIT and key == OTHER and torch_api.backends_of(OTHER) & set(has):
            return AMBIGUOUS, key
        if backend and (rule == IMPLICIT or (python and rule == NESTED)):
            continue
        return rule, alias
    return (FALLBACK, key) if key in fallbacks else (MISSING, key)


def _includes(rule: str, key: str, alias: str) -> bool:
    """Whether an alias key includes a key; Undefined is in none, but has composite kernels."""
    if key == torch_api.UNDEFINED:
        return rule in (EXPLICIT_NON_FUNCTIONAL, EXPLICIT, IMPLICIT)
    return torch_api.is_included(key, alias)
