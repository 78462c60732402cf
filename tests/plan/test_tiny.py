"""The shipped calibration of the embedded model, against a real run that it was not fitted on.

`held_out_run.json` holds the turns from the second on of another run of `neuron-pd demo` on the same machine, as
`plan calibrate` read them out of its records; that run was ended before its last OFF conversation.
"""

import json
from pathlib import Path

from rich.console import Console

from neuron_pd.plan.calibrate import predict
from neuron_pd.plan.calibration import Point, find
from neuron_pd.plan.observe import Observation
from neuron_pd.plan.text import prediction_table
from neuron_pd.plan.turn import Quantity, Turn


def test_medians_of_another_real_run_are_predicted_within_20_percent() -> None:
    by = find("tiny", "cpu")
    turns = []
    for body in json.loads((Path(__file__).parent / "held_out_run.json").read_text()):
        turn = Turn(body["prompt"], body["reused"], body["local"], body["held"])
        point = Point(Quantity(body["quantity"]), turn, body["ms"] / 1000, by.layout)
        turns.append(Observation(body["leg"], body["length"], first=False, points=(point,)))
    found = predict(turns, by.coefficients)
    Console(width=100).print(prediction_table(found, "Medians of another run, milliseconds"))
    assert [each.turns for each in found] == [3] * 14  # two quantities of seven conversations
    assert max(abs(each.error) for each in found) < 0.20
