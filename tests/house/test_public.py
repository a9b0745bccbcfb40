"""The public names are those of docs/design.md, no more and no fewer, and each says what it is."""

import pytest

import foretrace
from tests.house.wings import ORDER

# Every public name, and the public members that the design fixes.
PUBLIC = {
    "capture": (),
    "check": (),
    "Program": ("cut", "compile", "save"),
    "Loaded": ("cut", "cuts", "pair", "program", "missing_classes", "outside"),
    "load": (),
    "Cut": ("graph_module", "signature", "nodes", "explain", "__call__"),
    "Target": (),
    "Refusal": ("to_dict",),
    "export": (),
    "aot_export_module": (),
    "aot_autograd": (),
    "compile": (),
    "region": (),
    "Break": ("refusal",),
    "dispatch": (),
    "dispatch_trace": (),
    "Recapture": ("reason", "at", "others", "seconds"),
    "rule": (),
    "Explanation": ("to_dict",),
    "diff": (),
    "Diff": ("differences", "groups", "reasons", "missing", "of", "measured", "to_dict"),
}


def test_the_names_are_these():
    assert sorted(foretrace.__all__) == sorted(PUBLIC)


def test_nothing_else_looks_public():
    """A name at the top is public, private, or a wing."""
    assert {name for name in vars(foretrace) if name[0] != "_"} <= {*PUBLIC, *ORDER}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_says_what_it_is(name):
    text = getattr(foretrace, name).__doc__ or ""
    assert text.strip()
    assert not text.startswith(f"{name}("), "the docstring that dataclass writes"


@pytest.mark.parametrize(
    ("name", "member"), [(name, member) for name, members in PUBLIC.items() for member in members]
)
def test_a_member_is_there(name, member):
    found = getattr(foretrace, name)
    assert hasattr(found, member) or member in found.__annotations__
