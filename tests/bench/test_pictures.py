"""The palette, as people with the two common colour deficiencies see it."""

from itertools import combinations

import pytest

from neuron_pd.bench.drawings import GREEN, OFF_COLOUR, ON_COLOUR, TRANSFER_COLOUR

# Linear RGB as protanopes and deuteranopes see it (Viénot, Brettel and Mollon, 1999).
DEFICIENCIES = {
    "protanopia": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deuteranopia": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def seen(colour: str, matrix: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part**2.2 for part in parts]
    mixed = (sum(weight * part for weight, part in zip(row, linear, strict=True)) for row in matrix)
    return tuple(max(0.0, one) ** (1 / 2.2) for one in mixed)


@pytest.mark.parametrize("name", DEFICIENCIES)
def test_the_series_stay_apart(name: str) -> None:
    colours = {colour: seen(colour, DEFICIENCIES[name]) for colour in (OFF_COLOUR, ON_COLOUR, TRANSFER_COLOUR, GREEN)}
    for one, other in combinations(colours.values(), 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 0.15
