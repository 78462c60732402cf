import json

from neuron_pd.launcher.formats.json_text import as_json
from tests.launcher.engines import engine


def test_one_engine_is_an_object_and_several_are_a_list() -> None:
    spec = engine("p5en.48xlarge")
    body = {"env": spec.environment(), "argv": spec.argv(), "notes": list(spec.notes)}
    assert json.loads(as_json([spec])) == body
    assert json.loads(as_json([spec, spec])) == [body, body]
