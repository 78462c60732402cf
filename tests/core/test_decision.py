import pytest

from neuron_pd.core.decision import Path, Reason, choose


@pytest.mark.parametrize(
    ("verified", "local", "threshold", "expected"),
    [
        (128, 0, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (64, 0, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (63, 0, 64, (Path.RECOMPUTE, Reason.BELOW_THRESHOLD)),
        (128, 65, 64, (Path.RECOMPUTE, Reason.BELOW_THRESHOLD)),
        (128, 64, 64, (Path.READ_BACK, Reason.VERIFIED)),
        (128, 128, 64, (Path.RECOMPUTE, Reason.LOCAL)),
        (128, 256, 0, (Path.RECOMPUTE, Reason.LOCAL)),
        (1, 0, 0, (Path.READ_BACK, Reason.VERIFIED)),
        (0, 0, 0, (Path.RECOMPUTE, Reason.MISMATCH)),
        (0, 128, 64, (Path.RECOMPUTE, Reason.MISMATCH)),
    ],
)
def test_choose(verified: int, local: int, threshold: int, expected: tuple[Path, Reason]) -> None:
    assert choose(verified, local, threshold) == expected
