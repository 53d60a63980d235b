"""`bt.benchmark`: clean and robust accuracy under standard AutoAttack."""

from __future__ import annotations

import pytest

import buttress as bt
from buttress.errors import UserError
from conftest import images, small_net

MODEL = small_net(4)
X, _ = images(6, classes=4)
Y = MODEL(X).argmax(1)
Y[0] = (Y[0] + 1) % 4


def test_it_is_standard_autoattack() -> None:
    result = bt.benchmark(MODEL, (X, Y), "Linf:2/255", n_examples=5)
    x_adv = bt.attack("autoattack", MODEL, X[:5], Y[:5], threat="Linf:2/255")
    robust = (MODEL(x_adv).argmax(1) == Y[:5]).float().mean().item()
    clean_accuracy, robust_accuracy = result
    assert clean_accuracy == result.clean_accuracy == pytest.approx(4 / 5)
    assert robust_accuracy == result.robust_accuracy == pytest.approx(robust)
    assert result.clean.interval.low < clean_accuracy < result.clean.interval.high
    assert result.evaluation.records["autoattack"].metadata["args"] == {}
    assert "AutoAttack Linf:2/255, 5 images of arrays: clean accuracy 80.0% [37.6%, 96.4%]" in repr(
        result
    )
    assert "<table>" in result._repr_html_()


def test_the_words_of_robustbench_are_understood() -> None:
    def threat_of(**given: object) -> str:
        result = bt.benchmark(MODEL, (X, Y), n_examples=1, **given)  # type: ignore[arg-type]
        return str(result.evaluation.records["autoattack"].metadata["threat"])

    assert threat_of(threat_model="L2") == "L2:0.5"
    assert threat_of(threat_model="Linf", eps=2 / 255) == "Linf:2/255"
    assert threat_of() == "Linf:8/255"
    with pytest.raises(UserError, match=r"bt.evaluate\(model, dataset, 'corruptions'\)"):
        bt.benchmark(MODEL, (X, Y), threat_model="corruptions")
    with pytest.raises(UserError, match="given once"):
        bt.benchmark(MODEL, (X, Y), threat_model="L2", norm="L2")
    with pytest.raises(UserError, match="but got int"):
        bt.benchmark(MODEL, 1000)  # type: ignore[arg-type]
