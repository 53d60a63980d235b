"""What must be equal before two evaluations are compared, and the images they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buttress.comparison.sides import Judged
from buttress.errors import UserError
from buttress.records.evaluation import AttackRecord
from buttress.records.run import differences

WORST = "worst_case"
OF_ATTACK = ("attack", "args", "threat", "mode", "after", "images")
OF_SUITE = ("suite", "counts", *OF_ATTACK)


def rows_to_compare(members: Sequence[Judged], attack: str | None) -> list[str]:
    """Names of the rows; what does not fit is refused with what differs."""
    first = members[0]
    names = list(first.evaluation.records)
    for other in members[1:]:
        check_data(first, other)
        if attack is None or attack == WORST:
            check_attacks(first, other)
    if attack is None:
        for other in members[1:]:
            check_definitions(first, other, names, OF_SUITE)
        return [*names, WORST]
    check_known(members, attack)
    wanted = names if attack == WORST else [attack]
    for other in members[1:]:
        check_definitions(first, other, wanted, OF_SUITE if attack == WORST else OF_ATTACK)
    return [attack]


def check_attacks(a: Judged, b: Judged) -> None:
    ours, theirs = set(a.evaluation.records), set(b.evaluation.records)
    if ours == theirs:
        return
    said = [
        f"only {m.name} has {', '.join(sorted(only))}"
        for m, only in ((a, ours - theirs), (b, theirs - ours))
        if only
    ]
    both = ", ".join(n for n in a.evaluation.records if n in theirs)
    hint = f"compare one that both have with --attack: {both}" if both else "evaluate them alike"
    raise UserError(f"the attacks differ: {'; '.join(said)}; {hint}")


def check_known(members: Sequence[Judged], attack: str) -> None:
    for member in members:
        known = list(member.evaluation.records)
        if attack != WORST and attack not in known:
            raise UserError(
                f"{member.name} has no attack {attack!r}; it has {', '.join(known)} and {WORST}"
            )


def check_definitions(a: Judged, b: Judged, names: Sequence[str], keys: Sequence[str]) -> None:
    """Attacks of one name must be the same attack."""
    for name in names:
        ours, theirs = (_made(m.evaluation.records[name], keys) for m in (a, b))
        if changed := differences(ours, theirs):
            key = changed[0].partition(".")[0]
            hint = "; one attack that both have compares with --attack" if key == "suite" else ""
            raise UserError(
                f"{name} is not the same in both: {', '.join(changed)} differ ({a.name}: "
                f"{key} {ours[key]!r}, {b.name}: {key} {theirs[key]!r}); evaluate them alike{hint}"
            )


def _made(record: AttackRecord, keys: Sequence[str]) -> dict[str, Any]:
    return {k: record.meta.get(k) for k in keys}


def check_data(a: Judged, b: Judged) -> None:
    """The same data set and split and, where all images are the same, the same pixels."""
    ours, theirs = a.made, b.made
    if ours.get("data") is not None and ours.get("data") == theirs.get("data"):
        return
    for key in ("dataset", "split"):
        if ours.get(key) != theirs.get(key):
            raise UserError(
                f"the images differ: {a.name} was judged on {key} {ours.get(key)!r}, {b.name} on "
                f"{theirs.get(key)!r}"
            )
    # An evaluation that stops early carries the fingerprint of its first images only.
    is_whole = "until" not in ours and "until" not in theirs
    same_ids = np.array_equal(ids_of(a), ids_of(b))
    if is_whole and same_ids and ours.get("data") != theirs.get("data"):
        raise UserError(
            f"the pixels differ: {a.name} and {b.name} name the same images of "
            f"{ours.get('dataset')}, but their content is not the same (another image size?)"
        )


def ids_of(member: Judged) -> NDArray[np.int64]:
    return next(iter(member.evaluation.records.values())).ids


def shared_images(members: Sequence[Judged]) -> NDArray[np.int64]:
    """The sample ids that all were judged on, in order; their labels must agree."""
    shared = ids_of(members[0])
    for member in members:
        ids = ids_of(member)
        if len(np.unique(ids)) < len(ids):
            raise UserError(f"{member.name} names an image twice; sample ids must be unique")
        shared = np.intersect1d(shared, ids, assume_unique=True)
    if not len(shared):
        raise UserError(
            f"no image was judged by all: {', '.join(m.name for m in members)}; evaluate them on "
            "the same images"
        )
    labels = [_at(m, next(iter(m.evaluation.records.values())).labels, shared) for m in members]
    if any((row != labels[0]).any() for row in labels[1:]):
        raise UserError("the same sample ids have different labels: these are different data sets")
    return shared


def flags_on(members: Sequence[Judged], name: str, shared: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(members, images): who is right on each shared image under an attack or all of them."""
    rows = []
    for member in members:
        found = member.evaluation
        flags = found.survived if name == WORST else found.records[name].correct
        rows.append(_at(member, flags, shared))
    return np.stack(rows)


def _at(member: Judged, values: NDArray[Any], shared: NDArray[np.int64]) -> NDArray[Any]:
    ids = ids_of(member)
    order = np.argsort(ids, kind="stable")
    return np.asarray(values)[order[np.searchsorted(ids[order], shared)]]
