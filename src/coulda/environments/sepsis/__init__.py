"""The sepsis simulator of Oberst & Sontag (2019), with its diabetes component hidden.

A patient has four vitals (heart rate, blood pressure, oxygen, glucose) and three treatments (antibiotics,
vasopressors, ventilation), 720 combinations in all, and may be diabetic, which is not observed. An action sets
the treatments of the next state. Three or more abnormal vitals are death (-1); all of them normal and no treatment
is discharge (+1); both end the episode.

`kernel` holds the simulator's facts and its exact probabilities, `noise` the named reparameterizations of a
transition, `model` the POMDP.
"""

from coulda.environments.sepsis.model import Sepsis, SepsisState

__all__ = ["Sepsis", "SepsisState"]
