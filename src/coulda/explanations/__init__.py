"""Which decisions mattered: what at most k other ones would have made of a logged episode, with guarantees.

In the order in which they import each other: `question` (what is asked), `program` (the exact dynamic program of
observed finite models, and its bounds), `search` (sequences of actions on scenarios), `explanation` (the answer for an
episode), `answers` (for a log), `scenarios` (an episode by its scenarios) and `explain`.
"""

from coulda.explanations.answers import LogExplanation
from coulda.explanations.explain import explain, explain_log
from coulda.explanations.explanation import Change, Explanation
from coulda.explanations.question import Question

__all__ = ["Change", "Explanation", "LogExplanation", "Question", "explain", "explain_log"]
