"""What a pair saves, beside torch's partitioners on the same joint graphs, as in the benchmark."""

import pytest

from bench.partition import OURS, THEIRS, joint_of, ours, theirs, worse


@pytest.mark.parametrize("model", ["mlp", "attention", "llama4"])
def test_min_cut_saves_no_more_than_the_better_of_torch_s(model: str) -> None:
    """Bytes held, and bytes handed, by torch's own two partitioners and by ours."""
    program, joint = joint_of(model)
    rows = [ours(model, program, joint, policy, 1) for policy in OURS]
    rows += [theirs(model, joint, who, 1) for who in THEIRS]
    assert not worse(rows)
    handed = {row.who: row.handed for row in rows}
    assert handed["min_cut"] <= min(handed[who] for who in THEIRS)
    again = {row.who: row.again for row in rows}
    assert again["save_all"] == 0
    assert 0 < again["min_cut"] < again["recompute_all"]
