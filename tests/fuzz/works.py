"""Work that `test_fuzz.py` gives to children, which import this and no pytest."""

import os
import time
from dataclasses import asdict

import torch
from torch.utils import _pytree as pytree

from foretrace.frontends.program import Cut
from tests.fuzz import campaign
from tests.fuzz.server import Say
from tests.fuzz.verdict import judged


def faulty(item: tuple[str, str], say: Say) -> object:
    """In a child: judged where a graph is wrong if it has `exp`."""
    right = Cut.__call__

    def wrong(self: Cut, *args: object, **kwargs: object) -> object:
        found = right(self, *args, **kwargs)
        return pytree.tree_map(lambda t: t + 1, found) if "exp" in self.nodes else found

    Cut.__call__ = wrong
    return campaign.again(item, say)


def world(text: str, say: Say) -> object:
    """The verdicts on a world."""
    return [asdict(verdict) for verdict in judged(text, say=say)]


def dying(item: int, say: Say) -> int:
    say("at work")
    if item == 1:
        os.abort()
    while item == 2:
        time.sleep(1)
    return item


def backward(item: int, say: Say) -> tuple[int, float]:
    leaf = torch.ones((), requires_grad=True)
    (leaf * item).backward()
    return os.getppid(), leaf.grad.item()
