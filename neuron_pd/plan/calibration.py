"""What one model costs on one instance, as a file that says where each number comes from; and the ones that ship."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self

from neuron_pd.errors import UsageError
from neuron_pd.plan.turn import COLUMNS, Account, Coefficients, Layout, Quantity, Turn

FORMAT = "neuron-pd calibration"
VERSION = 1
BAND = 2.0  # standard deviations: about 95 of 100 turns, were their errors normal


@dataclass(frozen=True, slots=True)
class Point:
    """One measured or published duration: `seconds` of `quantity` for `turn`, of KV that lies as `layout` says."""

    quantity: Quantity
    turn: Turn
    seconds: float
    layout: Layout

    @property
    def group(self) -> str:
        """Quantity and leg, "ttft on": errors are counted by it."""
        return f"{self.quantity} {'on' if self.turn.reused else 'off'}"


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds a token of a reply: `fixed`, and more for every token of context and every other running reply."""

    fixed: float
    per_context_token: float = 0.0
    per_sequence: float = 0.0

    def seconds(self, context: float, others: int) -> float:
        return self.fixed + self.per_context_token * context + self.per_sequence * others


@dataclass(frozen=True, slots=True)
class Calibration:
    """`pool_tokens` is what D's KV cache holds. `errors` are relative standard deviations by `Point.group`.

    `points` are kept where they are few (published ones). `sources` says of each part where it comes from.
    """

    model: str
    instance: str
    layout: Layout
    pool_tokens: int
    coefficients: Coefficients
    decode: DecodeCost
    errors: Mapping[str, float]
    sources: Mapping[str, str]
    points: Sequence[Point] = ()
    held_out: Mapping[str, Any] = field(default_factory=dict)

    def account(self, turn: Turn) -> Account:
        return Account.of(turn, self.coefficients, self.layout)

    def band(self, group: str) -> float:
        """Half the width of the error band around a planned time, relative."""
        return BAND * self.errors.get(group, max(self.errors.values(), default=0.0))

    def over(self, gbps: float) -> Self:
        """The same engines over a link of `gbps` gigabits a second: a byte takes what the slower of both ways takes."""
        per_byte = max(self.coefficients.per_byte, 8e-9 / gbps)
        return replace(self, coefficients=replace(self.coefficients, per_byte=per_byte))

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "instance": self.instance,
            **asdict(self.layout),
            "pool_tokens": self.pool_tokens,
            "coefficients": {name: float(f"{value:.6g}") for name, value in self.coefficients.as_json().items()},
            "decode": {name: getattr(self.decode, name) for name in DecodeCost.__dataclass_fields__},
            "errors": {group: round(error, 4) for group, error in self.errors.items()},
            "held_out": dict(self.held_out),
            "sources": dict(self.sources),
            "points": [_point_json(point) for point in self.points],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """TypeError, KeyError, ValueError for anything that is not a calibration."""
        if body["format"] != FORMAT or body["version"] != VERSION:
            raise ValueError("format")
        layout = Layout(float(body["bytes_per_token"]), int(body["block_size"]), float(body["descriptors_per_block"]))
        unknown = set(body["coefficients"]) - set(COLUMNS)
        if unknown:
            raise KeyError(min(unknown))
        return cls(
            model=str(body["model"]),
            instance=str(body["instance"]),
            layout=layout,
            pool_tokens=int(body["pool_tokens"]),
            coefficients=Coefficients(**{name: float(value) for name, value in body["coefficients"].items()}),
            decode=DecodeCost(**{name: float(value) for name, value in body["decode"].items()}),
            errors=dict(body["errors"]),
            sources=dict(body["sources"]),
            points=tuple(_point(point, layout) for point in body.get("points", ())),
            held_out=dict(body.get("held_out", {})),
        )


def read(path: Path) -> Calibration:
    """A calibration file. UsageError when it is not one."""
    try:
        return Calibration.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no calibration: name a file that `neuron-pd plan calibrate` wrote") from None


def write(calibration: Calibration, path: Path) -> None:
    """UsageError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(calibration.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def shipped() -> list[Calibration]:
    """The calibrations that come with neuron-pd, by model and instance."""
    folder = resources.files(__package__) / "calibrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return [Calibration.from_json(json.loads(file.read_text(encoding="utf-8"))) for file in files]


def find(model: str, instance: str | None) -> Calibration:
    """The shipped calibration of `model`, by its full name or the part after the slash, on `instance`.

    Without an instance it must be the model's only one. UsageError, naming what there is, when there is none.
    """
    known = shipped()
    named = [each for each in known if model.lower() in (each.model.lower(), each.model.lower().rpartition("/")[2])]
    if not named:
        models = ", ".join(sorted({each.model for each in known}))
        raise UsageError(
            f"no calibration for model {model!r}: there are {models}; "
            "`neuron-pd plan calibrate` makes one, --calibration FILE takes it"
        )
    fitting = [each for each in named if instance in (None, each.instance)]
    if len(fitting) != 1:
        instances = ", ".join(sorted(each.instance for each in named))
        problem = "several instances" if instance is None else f"no calibration on instance {instance!r}"
        raise UsageError(f"{problem} for {named[0].model}: there are {instances}")
    return fitting[0]


def _point_json(point: Point) -> dict[str, Any]:
    turn = point.turn
    return {
        "quantity": str(point.quantity),
        "prompt": turn.prompt,
        "reused": turn.reused,
        "local": turn.local,
        "held": turn.held,
        "ms": round(1000 * point.seconds, 3),
    }


def _point(body: Mapping[str, Any], layout: Layout) -> Point:
    turn = Turn(int(body["prompt"]), int(body["reused"]), int(body["local"]), int(body["held"]))
    return Point(Quantity(body["quantity"]), turn, float(body["ms"]) / 1000, layout)
