"""What every turn needs, as one object."""

from dataclasses import dataclass

from neuron_pd.proxy.engines import Engines
from neuron_pd.proxy.leases import Leases
from neuron_pd.proxy.legs import Legs
from neuron_pd.proxy.metrics import Metrics
from neuron_pd.proxy.offers import Offers
from neuron_pd.proxy.store import Store
from neuron_pd.proxy.tracing import Tracing
from neuron_pd.proxy.ways import Ways


@dataclass(frozen=True, slots=True)
class Router:
    """The engines, what is known of conversations, and how to speak to either. `secret`: of conversations' keys."""

    engines: Engines
    store: Store
    legs: Legs
    leases: Leases
    metrics: Metrics
    ways: Ways
    offers: Offers
    tracing: Tracing
    secret: bytes
