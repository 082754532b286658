"""From quick to thorough: the stages in which a node's first solution is looked for.

1. Optimistic: candidates and constraint masks only; nearly all pods end here.
2. Pruning: bounds, failed states and twins, after a few dead ends.
3. Solver: where that goes on for long and the extra ``solver`` is installed; without it stage 2 goes on to its budget.

All give the same first solution. Source: spec/engine.md section 4.
"""

from __future__ import annotations

from typing import Final

from drakkar.allocator import solver
from drakkar.allocator.bounds import Bounds
from drakkar.allocator.model import build
from drakkar.allocator.needs import NodeTask
from drakkar.allocator.search import BudgetSpent, Search, SwitchToPruning

#: Steps of stage 2 after which the solver is asked: more than any case with some symmetry takes.
SOLVER_AFTER: Final = 200


def first_solution(task: NodeTask, budget: int) -> Search | None:
    """The search at its first solution, None when there is proof that there is none.

    Raises :class:`BudgetSpent` when ``budget`` steps do not decide it, and :class:`Fault` where upstream would.
    """
    try:
        search = Search(task, budget, None)
        return search if search.run() else None
    except SwitchToPruning:
        pass
    early = min(budget, SOLVER_AFTER) if solver.available() else budget
    try:
        return _prune(task, early)
    except BudgetSpent:
        if early == budget:
            raise
    answer = _solver(task)
    if isinstance(answer, Search):
        return answer
    if answer is solver.Verdict.NONE:
        return None
    return _prune(task, budget)


def _prune(task: NodeTask, budget: int) -> Search | None:
    search = Search(task, budget, Bounds(task))
    return search if search.run() else None


def _solver(task: NodeTask) -> Search | solver.Verdict:
    model = build(task)
    if model is None:
        return solver.Verdict.UNDECIDED
    upstream = task.policy == "upstream"
    answer = solver.first(model, None if upstream else solver.MOST_QUESTIONS)
    if isinstance(answer, solver.Verdict):
        return answer
    if not answer.first and upstream:
        return solver.Verdict.UNDECIDED
    search = Search(task, 0, None)
    # What the solver found counts only once the rules of the search have passed it.
    return search if search.replay(answer.choices) else solver.Verdict.UNDECIDED
