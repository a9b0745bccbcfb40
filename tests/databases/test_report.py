"""RELIABILITY.md and the tables behind it, printed from lines that no run wrote."""

from tests.databases.raw_tables import raw_tables
from tests.databases.report import report
from tests.databases.table import Line

DATABASE = "custom_op"


def of(name: str, route: str, status: str = "bitwise", kind: str = "", what: str = "") -> Line:
    return Line(DATABASE, name, route, status, kind, what, count=1, samples=3)


def asked(name: str, route: str, op: str) -> Line:
    return of(name, route, "refused", "data-dependent", f"{op} asks for a number")


def page(*lines: Line) -> list[str]:
    return report(lines, ["0a1b2c3-all"], "docs/tables.md").splitlines()


def row(*lines: Line) -> list[str]:
    """The cells of the one database."""
    (found,) = (line for line in page(*lines) if line.startswith(f"| {DATABASE} |"))
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def section(title: str, *lines: Line) -> list[str]:
    found = page(*lines)
    rest = found[found.index(f"## {title}") + 2 :]
    return rest[: rest.index("")] if "" in rest else rest


def test_each_column_is_of_the_route_that_is_worst_in_it() -> None:
    """Here joint has the smallest share and one that is close, export the most refusals."""
    names = ("a", "b", "c", "d")
    export = [of(name, "export") for name in names] + [asked("e", "export", "aten.item")]
    joint = [of("a", "joint"), of("b", "joint", "close"), of("c", "joint", "strides")]
    assert row(*export, *joint) == ["15 (all)", "joint", "1 of 3", "2", "1", "0", "not run"]


def test_torchs_own_stands_beside_and_counts_in_no_column_of_ours() -> None:
    theirs = [of("a", "torch.export"), of("a", "torch.compile", "raises")]
    found = row(of("a", "export"), *theirs)
    assert found == ["3 (all)", "export", "1 of 1", "0", "0", "0", "0 of 1 (torch.compile)"]
    assert section("Faults", of("a", "export"), of("a", "aot_function", "wrong")) == ["None."]


def test_a_fault_is_counted_and_listed_with_its_routes() -> None:
    wrong = [of("a", "export", "wrong", what="a | b"), of("a", "aten", "wrong", what="a | b")]
    aborted = of("b", "child", "abort", what="SIGABRT")
    assert row(*wrong, aborted)[5] == "2"
    assert section("Faults", *wrong, aborted) == [
        f"- {DATABASE} `a`: wrong, 1 of 3 (export, aten): a / b",
        f"- {DATABASE} `b`: abort, 1 of 3 (child): SIGABRT",
    ]


def test_what_leaves_eager_otherwise_is_a_fault() -> None:
    left = Line(DATABASE, "a", "export", "bitwise", count=3, samples=3, left="torch's ['modes']")
    said = "eager differs afterwards, 3 of 3 (export): torch's ['modes']"
    assert section("Faults", left) == [f"- {DATABASE} `a`: {said}"]


def test_refusals_are_grouped_by_cause() -> None:
    """One cause: one kind, and words that differ in one place. An operator counts once in it."""
    found = section(
        "Refused, by cause",
        of("z", "export", "refused", "unsupported tensor", "it is sparse"),
        *(asked(name, "export", op) for name, op in [("a", "aten.item"), ("b", "aten.equal")]),
        *(asked("b", route, "aten.is_nonzero") for route in ("aten", "joint")),
        of("c", "export", "refused", "data-dependent", "a size of it depends on data"),
        of("d", "export", "refused", "side effect", "aten.item asks for a number"),
    )
    assert found[2:] == [
        "| 2 | data-dependent | … asks for a number | `a` `b` |",
        "| 1 | data-dependent | a size of it depends on data | `c` |",
        "| 1 | side effect | aten.item asks for a number | `d` |",
        "| 1 | unsupported tensor | it is sparse | `z` |",
    ]


def test_words_that_differ_in_two_places_are_two_causes() -> None:
    what = ("x gives 1 row", "y gives 1 row", "y gives 2 row")
    lines = [of(str(i), "export", "refused", "k", words) for i, words in enumerate(what)]
    found = section("Refused, by cause", *lines)
    assert found[2:] == ["| 2 | k | … gives 1 row | `0` `1` |", "| 1 | k | y gives 2 row | `2` |"]


def test_nothing_to_compare_is_no_operator_of_a_share() -> None:
    nothing = of("a", "", "nothing", what="eager raises")
    assert row(of("b", "export"), nothing)[1:3] == ["export", "1 of 1"]
    assert row(nothing)[1:3] == ["", "nothing"]
    assert section("Nothing to compare", nothing)[2:] == ["| 1 |  | eager raises | `a` |"]


def test_the_page_names_its_records_and_its_tables() -> None:
    found = "\n".join(page(of("a", "export")))
    assert "0a1b2c3-all.\n" in found
    assert "(docs/tables.md)" in found


def test_the_tables_have_every_route_and_every_operator_that_is_not_bitwise() -> None:
    lines = [of("a", "export"), of("b", "export", "close", what="by 1"), of("a", "torch.export")]
    found = raw_tables(lines, ["0a1b2c3-all"], "../RELIABILITY.md")
    assert "0a1b2c3-all." in found
    assert "(../RELIABILITY.md)" in found
    assert f"| {DATABASE} | export | 6 (all) | 1 | 1 |" in found
    assert f"| {DATABASE} | torch.export | 3 (all) | 1 |  |" in found
    assert f"- {DATABASE} **b**: close (1 of 3; export): by 1" in found
