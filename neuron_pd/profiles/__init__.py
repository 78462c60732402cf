"""Profiles: what kinds of machines and models need of an engine, as YAML that is checked key by key."""

from neuron_pd.profiles.instance import ROLES, Instance
from neuron_pd.profiles.model import Model
from neuron_pd.profiles.settings import Flag, Settings
from neuron_pd.profiles.store import Profiles

__all__ = ["ROLES", "Flag", "Instance", "Model", "Profiles", "Settings"]
