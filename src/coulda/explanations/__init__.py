"""Which decisions mattered: what at most k other ones would have made of a logged episode, with guarantees.

In the order in which they import each other: `question` (what is asked), `program` (the exact dynamic program of
observed finite models, and its bounds), `search` (sequences of actions on scenarios), `histories` (policies of what is
seen on them), `explanation` (the answer for an episode), `answers` (for a log), `scenarios` (an episode by its
scenarios), `explain`, `credit` (the case of one change, step by step) and `drawing`.
"""

from coulda.explanations.answers import LogExplanation, Saved
from coulda.explanations.credit import Credit, credit, credit_log
from coulda.explanations.drawing import draw_curve
from coulda.explanations.explain import explain, explain_log
from coulda.explanations.explanation import Change, Course, Explanation
from coulda.explanations.question import Question

__all__ = [
    "Change",
    "Course",
    "Credit",
    "Explanation",
    "LogExplanation",
    "Question",
    "Saved",
    "credit",
    "credit_log",
    "draw_curve",
    "explain",
    "explain_log",
]
