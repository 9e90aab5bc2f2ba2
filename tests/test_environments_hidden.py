"""Worlds with something hidden: the public checks, and what is known of each in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coulda.environments import Glucose, GlucoseState, Inventory, InventoryState, Pump, PumpState, Queue
from coulda.errors import CouldaError
from coulda.pomdp.observing import infers_noise, no_density
from coulda.testing import check_pomdp

WORLDS = {
    "pump": Pump(horizon=3),
    "inventory": Inventory(horizon=3),
    "queue": Queue(horizon=3),
    "glucose": Glucose(horizon=3),
}


@pytest.mark.parametrize("name", WORLDS)
def test_each_passes_the_public_checks_and_its_densities_are_derived(name):
    check_pomdp(WORLDS[name])
    assert no_density(WORLDS[name]) is None
    assert infers_noise(WORLDS[name])


def test_pumps_come_as_worn_as_is_said():
    u = (jnp.arange(4000.0) + 0.5) / 4000  # the mean of w(u) by the midpoint rule
    for worn in (0.1, 0.5, 0.8):
        wear = jax.vmap(Pump(worn=worn).initial)(u).wear
        assert float(wear.mean()) == pytest.approx(0.9 * worn, abs=1e-3)
    with pytest.raises(CouldaError, match=r"worn is 0\.0; it is a share"):
        Pump(worn=0.0)


def test_a_service_renews_the_pump_and_tells_how_worn_it_was():
    pump, old = Pump(), PumpState(jnp.array(0.85), jnp.array(0.0))
    serviced = pump.transition(old, jnp.int32(1), jnp.array(0.5))
    assert [float(x) for x in serviced] == pytest.approx([0.05, 0.85])
    broken = pump.transition(old, jnp.int32(0), jnp.array(1.0))
    assert [float(x) for x in broken] == pytest.approx([1.05, 0.0])
    assert bool(pump.terminal(broken))
    assert [float(pump.reward(old, jnp.int32(a), s)) for a, s in ((1, serviced), (0, broken), (0, old))] == [-1, -10, 1]


def test_what_is_not_sold_is_kept_and_a_stock_out_hides_the_demand():
    shop, state = Inventory(), InventoryState(jnp.array(12.0), jnp.array(4.0), jnp.array(0.0))
    quiet = shop.transition(state, jnp.int32(2), jnp.zeros(2))  # 4 + 10 available, 12 wanted
    assert [float(x) for x in quiet] == pytest.approx([12, 2, 12])
    assert float(shop.reward(state, jnp.int32(2), quiet)) == pytest.approx(12 - 4 - 0.2)
    busy = [shop.transition(state, jnp.int32(1), jnp.array([u, 0.0])) for u in (1.0, 2.0)]
    assert [float(s.sold) for s in busy] == [9.0, 9.0], "all that there was, however much was wanted"


def test_a_slow_desk_makes_its_own_queue_longer():
    queue, noise = Queue(horizon=3), jnp.zeros(4)
    state = queue.transition(jnp.array([0.0, 0.0, -1.0, 0.5]), jnp.array([0.25]), noise)
    assert np.asarray(state).tolist() == [1.25, -0.75, -1.0, 0.5]
    assert float(queue.reward(state, jnp.array([1.0]), state)) == pytest.approx(-(1.25**2 + 0.75**2 + 1) / 100)


def test_glucose_rests_at_its_basal_level_and_falls_by_sensitivity():
    patient, none = Glucose(), {"meal": jnp.array(0.0), "rest": jnp.array(0.0)}
    state = GlucoseState(jnp.array(140.0), jnp.array(0.0), jnp.array(8.0))
    assert [float(x) for x in patient.transition(state, jnp.int32(0), none)] == [140.0, 0.0, 8.0]
    assert [float(x) for x in patient.transition(state, jnp.int32(2), none)] == [124.0, 2.0, 8.0]
    feast = patient.transition(state, jnp.int32(0), none | {"meal": jnp.array(1.0)})
    assert float(feast.glucose) == 200.0
    assert float(patient.reward(state, jnp.int32(0), state._replace(glucose=jnp.array(55.0)))) == pytest.approx(-1.0)
