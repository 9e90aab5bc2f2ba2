"""The classifier two-sample test of the benchmark: how well a two-layer MLP tells draws from reference draws.

Arguments: two files with `draws [observations, n, d]` each, a file of lines to which each observation's score is added,
so that it can be stopped and begun again, and, if not all, how many observations. Both are scaled by mean and deviation
of the first, in single precision as the benchmark has it; five folds; accuracy, of which 0.5 is the best.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier

warnings.filterwarnings("ignore")


def c2st(reference, draws):
    """As sbibm 1.1.0 defines it."""
    mean, scale = reference.mean(0), reference.std(0, ddof=1)
    size = reference.shape[1]
    classifier = MLPClassifier(
        activation="relu", hidden_layer_sizes=(10 * size, 10 * size), max_iter=1000, solver="adam", random_state=1
    )
    data = np.concatenate([(reference - mean) / scale, (draws - mean) / scale])
    target = np.repeat([0, 1], [len(reference), len(draws)])
    folds = KFold(n_splits=5, shuffle=True, random_state=1)
    return float(np.mean(cross_val_score(classifier, data, target, cv=folds, scoring="accuracy")))


with np.load(sys.argv[1], allow_pickle=False) as ours, np.load(sys.argv[2], allow_pickle=False) as theirs:
    reference, draws = ours["draws"], theirs["draws"]
lines = Path(sys.argv[3])
known = [float(line) for line in lines.read_text().splitlines()] if lines.exists() else []
most = int(sys.argv[4]) if len(sys.argv) > 4 else len(reference)
for a, b in list(zip(reference, draws, strict=True))[len(known) : most]:
    known.append(c2st(a.astype(np.float32), b.astype(np.float32)))
    with lines.open("a") as file:
        file.write(f"{known[-1]}\n")
print(json.dumps({"c2st": known}))
