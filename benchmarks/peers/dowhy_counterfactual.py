"""Runs in DoWhy's own environment: ROWS.npz FOLDER → answers.npz and timings."""

import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
from dowhy import gcm
from dowhy.gcm.ml import PredictionModel

warnings.filterwarnings("ignore")
gcm.config.disable_progress_bars()


class Function(PredictionModel):
    """A known mechanism: nothing is fitted."""

    def __init__(self, function):
        self.function = function

    def fit(self, X, Y):
        """Nothing to do."""

    def predict(self, X):
        """The function, as a column."""
        return self.function(X).reshape(-1, 1)

    def clone(self):
        """The same again."""
        return Function(self.function)


def model(h, y):
    scm = gcm.InvertibleStructuralCausalModel(nx.DiGraph([("X", "H"), ("X", "Y"), ("H", "Y")]))
    scm.set_causal_mechanism("X", gcm.EmpiricalDistribution())
    scm.set_causal_mechanism("H", gcm.AdditiveNoiseModel(h))
    scm.set_causal_mechanism("Y", gcm.AdditiveNoiseModel(y))
    return scm


def measure(scm, rows):
    gcm.fit(scm, rows)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        answer = gcm.counterfactual_samples(scm, {"H": lambda h: np.full_like(h, 2.0)}, observed_data=rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), answer["Y"].to_numpy()


def main():
    data = np.load(sys.argv[1], allow_pickle=False)
    rows = pd.DataFrame({name: data[name].astype(float) for name in ("X", "H", "Y")})
    linear = model(gcm.ml.create_linear_regressor(), gcm.ml.create_linear_regressor())
    # DoWhy hands the parents over in the order of their names: H before X.
    curved = model(
        Function(lambda X: np.sin(2 * X[:, 0]) + 0.5 * X[:, 0]),
        Function(lambda X: np.tanh(X[:, 1] * X[:, 0]) + 0.3 * X[:, 0] ** 2),
    )
    (linear_seconds, linear_answer), (curved_seconds, curved_answer) = measure(linear, rows), measure(curved, rows)
    np.savez(Path(sys.argv[2]) / "answers.npz", linear=linear_answer, nonlinear=curved_answer)
    coefficients = {}
    for node in ("H", "Y"):
        regressor = linear.causal_mechanism(node).prediction_model.sklearn_model
        coefficients[node] = [float(np.ravel(regressor.intercept_)[0]), *map(float, np.ravel(regressor.coef_))]
    print(json.dumps({"linear": linear_seconds, "nonlinear": curved_seconds, "coefficients": coefficients}))


main()
