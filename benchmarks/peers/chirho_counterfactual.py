"""Runs in ChiRho's own environment: DRAWS → the discrete query by vectorized likelihood weighting."""

import json
import statistics
import sys
import time

import pyro
import pyro.distributions as dist
import torch
from chirho.counterfactual.handlers import MultiWorldCounterfactual
from chirho.indexed.ops import IndexSet, gather
from chirho.interventional.handlers import do
from chirho.observational.handlers import condition


def clinic():
    d = pyro.sample("D", dist.Bernoulli(0.2))
    pyro.sample("T", dist.Bernoulli(torch.where(d > 0, 0.9, 0.2)))
    a = pyro.sample("A", dist.Bernoulli(0.3))
    p = torch.where(d > 0, torch.where(a > 0, 0.7, 0.3), torch.tensor(0.9))
    return pyro.sample("Y", dist.Bernoulli(p))


def query(draws):
    handlers = condition(data={"T": torch.tensor(1.0)}), do(actions={"A": torch.tensor(1.0)})
    with MultiWorldCounterfactual(first_available_dim=-2), handlers[0], handlers[1]:
        with pyro.poutine.trace() as tracer, pyro.plate("draws", draws, dim=-1):
            y = clinic()
        outcome = gather(y, IndexSet(A={1}))
    tracer.trace.compute_log_prob(lambda name, _: name == "T")
    log_weights = tracer.trace.nodes["T"]["log_prob"].expand(draws)
    return float((torch.softmax(log_weights, -1) * outcome.reshape(-1)).sum())


def main():
    draws, times, worked, answer = int(sys.argv[1]), [], [], 0.0
    torch.set_num_threads(1)
    for _ in range(16):
        start, begun = time.perf_counter(), time.process_time()
        answer = query(draws)
        times.append(time.perf_counter() - start)
        worked.append(time.process_time() - begun)
    print(json.dumps({"seconds": statistics.median(times[1:]), "processor": min(worked[1:]), "answer": answer}))


main()
