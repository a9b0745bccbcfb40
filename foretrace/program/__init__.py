"""foretrace's own entry points: capture a program, cut it, run and explain the cuts."""

from foretrace.program.cut import Cut as Cut
from foretrace.program.entry import capture as capture, rule as rule
from foretrace.program.making import Form as Form, cut_at as cut_at, halves_of as halves_of
from foretrace.program.program import HALVES as HALVES, Program as Program
