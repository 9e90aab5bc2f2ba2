"""PO-Sokoban: the environment, its level generator and its exact solver (section 3.2, appendix C)."""
