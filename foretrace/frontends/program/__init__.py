"""`capture`, `Program` and `Cut`: capture a program, cut it, run and explain the cuts."""

from foretrace.frontends.program.capture import capture as capture, rule as rule
from foretrace.frontends.program.cut import Cut as Cut
from foretrace.frontends.program.program import Program as Program
