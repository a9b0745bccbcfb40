"""Generated functions: what they name does not hide their parameters."""

import pytest

from foretrace.lowering.emit.python_source import PARAMETERS, Source


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_object_called_as_a_parameter(name: str) -> None:
    source, item = Source(), object()
    bound = source.bind(item, name.capitalize())
    source.add(f"return {bound}, {name}")
    assert source.function("f", ", ".join(PARAMETERS))(1, 1, 1) == (item, 1)


def test_inner_lines_name_the_same_objects() -> None:
    source, item = Source(), object()
    inner = source.inner()
    assert inner.bind(item, "item") == source.bind(item, "item")
