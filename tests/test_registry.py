"""Names, near names, and arguments."""

from __future__ import annotations

import pytest

from buttress.config import Spec, apply_overrides
from buttress.errors import UnknownNameError, UserError
from buttress.registry import Registry, natural_sort_key


def registry() -> Registry[object]:
    things: Registry[object] = Registry("thing")

    @things.register("wrn_28_10", tags=("cnn",), paper="arXiv:1")
    def wrn(depth: int = 28) -> int:
        """The first line is what it is about.

        The rest is not.
        """
        return depth

    things.register("wrn_9", tags=("cnn",))(lambda: 0)
    things.register("vit-s", tags=("transformer",))(lambda: 0)
    return things


def test_names_are_sorted_naturally_and_chosen_by_tag() -> None:
    assert registry().names() == ["vit-s", "wrn_9", "wrn_28_10"]
    assert registry().names("cnn") == ["wrn_9", "wrn_28_10"]
    assert sorted(["b", "a10", "a9", "digits"], key=natural_sort_key) == [
        "a9",
        "a10",
        "b",
        "digits",
    ]


def test_dashes_and_capitals_do_not_matter() -> None:
    assert registry().entry("WRN-28-10").name == "wrn_28_10"
    assert "vit_s" in registry()
    assert registry().entry("wrn_28_10").summary == "The first line is what it is about."


def test_unknown_names_show_near_ones() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown thing 'wrn_28_1'; did you mean 'wrn_28_10'"
    ):
        registry().get("wrn_28_1")
    with pytest.raises(UnknownNameError, match="buttress list things"):
        registry().get("zzz")


def test_a_second_registration_is_refused() -> None:
    things = registry()
    with pytest.raises(ValueError, match="twice"):
        things.register("WRN-9")(lambda: 1)


def test_arguments_are_checked() -> None:
    assert registry().create("wrn_28_10", {"depth": 3}) == 3
    with pytest.raises(UserError, match="unknown argument 'dept'; accepted: depth"):
        registry().create("wrn_28_10", {"dept": 3})


class Inner(Spec):
    rate: float = 1.0


class Outer(Spec):
    inner: Inner = Inner()
    epochs: int


def test_a_misspelt_key_is_named_with_its_place_and_the_near_key() -> None:
    with pytest.raises(UserError, match=r"file: unknown key 'inner.rat', did you mean 'rate'\?"):
        Outer.parse({"epochs": 1, "inner": {"rat": 2}}, "file")
    with pytest.raises(UserError, match=r"epochs: .*valid integer"):
        Outer.parse({"epochs": "many"}, "file")
    with pytest.raises(UserError, match="epochs: Field required"):
        Outer.parse({}, "file")


def test_overrides_pass_the_same_validation() -> None:
    raw = apply_overrides({"epochs": 1, "inner": {"rate": 2}}, ("inner.rate=0.5", "epochs=3"))
    assert Outer.parse(raw, "x") == Outer(epochs=3, inner=Inner(rate=0.5))
    with pytest.raises(UserError, match=r"unknown key 'inner\.speed'"):
        Outer.parse(apply_overrides(raw, ("inner.speed=1",)), "x")
    with pytest.raises(UserError, match="KEY=VALUE"):
        apply_overrides({}, ("epochs",))
    with pytest.raises(UserError, match="is a value"):
        apply_overrides({"epochs": 1}, ("epochs.x=1",))
