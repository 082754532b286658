"""HiGHS on the model of a node: is there a choice, and which is the first. Needs the extra ``drakkar[solver]``.

The solver is limited by nodes of its search, not by time, so the same problem has the same answer everywhere.
It reckons in doubles; so rows hold small whole numbers only, and every solution is checked exactly
before it is used. That there is none rests on the solver's own tolerances.

Why HiGHS: docs/decisions/0005-solver.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from drakkar.allocator.model import Model

#: Branches that all questions about one problem may take together; far beyond what 64 irregular devices need.
MOST_NODES: Final = 3_000


#: Questions on the way from some solution to the first one. 64 devices need fewer; where there are more, a solution
#: that may not be the first is answer enough, unless it has to be upstream's.
MOST_QUESTIONS: Final = 300


class Verdict(Enum):
    """Answers without a solution."""

    #: There is none.
    NONE = "none"
    #: The limit came first, or the answer cannot be trusted.
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Choices:
    """A solution: (claim, request, rank, positions) in the order of the search."""

    choices: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    #: Whether it is proved to be the first in the order of the search.
    first: bool


@cache
def available() -> bool:
    """Whether the extra is installed."""
    return find_spec("highspy") is not None


def first(model: Model, questions: int | None = MOST_QUESTIONS) -> Choices | Verdict:
    """The first solution in the order of the search, or after so many questions (None: no limit) the best so far."""
    if any(not row.terms and ((row.low or 0) > 0 or (row.high or 0) < 0) for row in model.rows):
        # No variable can help; the solver leaves such rows out.
        return Verdict.NONE
    program = _Program(model, questions)
    solution = program.ask()
    if isinstance(solution, Verdict):
        return solution
    surely = True
    choices: list[tuple[int, int, int, tuple[int, ...]]] = []
    settled: set[tuple[int, int]] = set()
    for slot in model.slots:
        if (slot.claim, slot.request) in settled:
            continue
        if slot.taken is not None and not solution[slot.taken]:
            better = program.ask(slot.taken)
            if isinstance(better, Verdict):
                surely = surely and better is Verdict.NONE
                program.fix(slot.taken, 0)
                continue
            solution = better
        if slot.taken is not None:
            program.fix(slot.taken, 1)
        settled.add((slot.claim, slot.request))
        missing = len(slot.picks) if slot.need.every is not None else slot.need.count
        positions: list[int] = []
        for position, variable in slot.picks.items():
            if len(positions) == missing:
                break
            if not solution[variable]:
                better = program.ask(variable)
                if isinstance(better, Verdict):
                    surely = surely and better is Verdict.NONE
                    program.fix(variable, 0)
                    continue
                solution = better
            program.fix(variable, 1)
            positions.append(position)
        choices.append((slot.claim, slot.request, slot.rank, tuple(positions)))
    return Choices(tuple(choices), surely)


class _Program:
    """A model inside HiGHS."""

    def __init__(self, model: Model, questions: int | None) -> None:
        self._questions = questions
        highspy: Any = import_module("highspy")
        self._model = model
        self._highspy = highspy
        # The class behind the public one: that writes a line to standard output before anybody can forbid it.
        solver = self._solver = highspy.Highs.__base__()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        self._nodes_left = MOST_NODES
        solver.passModel(self._translated())

    def _translated(self) -> Any:
        highspy, model = self._highspy, self._model
        endless = highspy.kHighsInf
        found = highspy.HighsLp()
        found.num_col_, found.num_row_ = model.size, len(model.rows)
        found.col_cost_ = [0.0] * model.size
        found.col_lower_ = [0.0] * model.size
        found.col_upper_ = [1.0] * model.size
        found.integrality_ = [highspy.HighsVarType.kInteger] * model.size
        found.row_lower_ = [-endless if row.low is None else float(row.low) for row in model.rows]
        found.row_upper_ = [endless if row.high is None else float(row.high) for row in model.rows]
        starts, columns, values = [0], list[int](), list[float]()
        for row in model.rows:
            columns += [variable for variable, _ in row.terms]
            values += [float(coefficient) for _, coefficient in row.terms]
            starts.append(len(columns))
        found.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        found.a_matrix_.start_, found.a_matrix_.index_, found.a_matrix_.value_ = starts, columns, values
        return found

    def fix(self, variable: int, value: int) -> None:
        """Settles a variable for all further questions."""
        self._solver.changeColBounds(variable, value, value)

    def ask(self, wanted: int | None = None) -> list[bool] | Verdict:
        """A solution, if wanted one in which this variable is true."""
        solver = self._solver
        if self._nodes_left <= 0 or self._questions == 0:
            return Verdict.UNDECIDED
        if self._questions is not None:
            self._questions -= 1
        if wanted is not None:
            solver.changeColBounds(wanted, 1, 1)
        solver.setOptionValue("mip_max_nodes", self._nodes_left)
        solver.run()
        self._nodes_left -= max(1, solver.getInfo().mip_node_count)
        status = solver.getModelStatus()
        statuses = self._highspy.HighsModelStatus
        answer: list[bool] | Verdict = Verdict.UNDECIDED
        if status in (statuses.kOptimal, statuses.kModelEmpty):
            values = [value > 0.5 for value in solver.getSolution().col_value]
            if self._holds(values):
                return values
        elif status == statuses.kInfeasible:
            answer = Verdict.NONE
        if wanted is not None:
            solver.changeColBounds(wanted, 0, 1)
        return answer

    def _holds(self, values: list[bool]) -> bool:
        for row in self._model.rows:
            total = sum(coefficient for variable, coefficient in row.terms if values[variable])
            if (row.low is not None and total < row.low) or (row.high is not None and total > row.high):
                return False
        return True
