import pytest

from modelserver.errors import BadRequest
from modelserver.ext.rollout.plan import (
    Plan,
    Promotion,
    Shadowing,
    check,
    check_form,
    pair_of,
    patched,
    renamed,
    without,
)

HALVES = {"1.0": 50, "2.0": 50}
BOUND = {"errors": 0.1}


def plan(**parts):
    return patched(Plan(), parts)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"1.0": 90, "2.0": 10}, Plan({"1.0": 90, "2.0": 10})),
        ({"1.0": 99.5, "2.0": 0.5}, Plan({"1.0": 99.5, "2.0": 0.5})),
        ({"weights": HALVES, "sticky": "x-user"}, Plan(HALVES, "x-user")),
        ({"shadow": {"2.0": {"percent": 25}}}, Plan(shadow={"2.0": Shadowing(25)})),
        ({"promote": {"after": 5, **BOUND}}, Plan(promote=Promotion(5, errors=0.1))),
    ],
)
def test_numbers_alone_are_weights(document, expected):
    assert patched(Plan(), document) == expected


def test_parts_that_are_not_named_stay():
    whole = plan(weights=HALVES, sticky="x-user", shadow={"2.0": {"percent": 25}}, promote=BOUND)

    assert patched(whole, {"1.0": 100}).shadow == whole.shadow
    assert patched(whole, {"shadow": {"2.0": {"percent": 5}}}).weights == HALVES
    assert patched(whole, dict.fromkeys(("weights", "sticky", "shadow", "promote"))) == Plan()

    assert patched(Plan(), whole.document()) == whole
    assert not Plan()
    assert whole


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        None,
        5,
        {"1.0": "90"},
        {"1.0": True},
        {"1.0": -1, "2.0": 101},
        {"1.0": 90, "x": {}},
        {"weights": [1]},
        {"weights": HALVES, "more": 1},
        {"sticky": 5},
        {"shadow": {"2.0": 25}},
        {"shadow": {"2.0": {"percent": 101}}},
        {"shadow": {"2.0": {"percent": 5, "compare": "eye"}}},
        {"shadow": {"2.0": {}}},
        {"promote": {"after": 0}},
        {"promote": {"agreement": 2}},
        {"promote": 5},
        {"1.0": float("nan")},
        {"promote": {**BOUND, "after": 10**400}},
        {"promote": {"p99_ratio": float("inf")}},
        {"shadow": {"2.0": {"percent": 5, "tolerance": 1e400}}},
    ],
)
def test_what_is_no_plan_is_refused(document):
    with pytest.raises(BadRequest):
        check(patched(Plan(), document), ["1.0", "2.0"], "1.0")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weights": {"1.0": 90, "2.0": 20}}, "weights: they add up to 110, they must add up to 100."),
        ({"weights": {"1.0": 0}}, "weights: they add up to 0, they must add up to 100."),
        ({"weights": {"9": 100}}, "weights: version 9 is not registered; there are 1.0, 2.0."),
        ({"shadow": {"9": {"percent": 5}}}, "shadow: version 9 is not registered; there are 1.0, 2.0."),
        ({"shadow": {"2.0": {"percent": 1e-18}}}, "1e-18 percent are too few: 0 or at least 0.000001 are"),
        ({"weights": HALVES, "promote": {**BOUND, "steps": [1e-9, 100]}}, "1e-09 percent are too few"),
        ({"sticky": "x user"}, "sticky: the name of a header is needed."),
        ({"weights": {str(n): 1 for n in range(20)}}, "weights: 20 versions are named, 16 are allowed."),
        ({"weights": HALVES, "promote": {}}, "promote: a bound is needed"),
        ({"promote": BOUND}, "promote.version: the version to promote is needed."),
        ({"weights": HALVES, "promote": {**BOUND, "steps": [5, 5]}}, "promote.steps: percent that increase"),
        ({"weights": HALVES, "promote": {**BOUND, "version": "9"}}, "promote: exactly one"),
        ({"promote": {**BOUND, "version": "9"}}, "promote: version 9 is not registered; there are 1.0, 2.0."),
        ({"weights": HALVES, "promote": {"agreement": 1}}, "promote.agreement: nothing is compared"),
        ({"promote": {**BOUND, "version": "2.0"}}, "promote: 2.0 gets no requests: it needs a weight"),
        ({"weights": {"1.0": 100, "2.0": 0}, "promote": BOUND}, "promote: 2.0 gets no requests"),
        ({"shadow": {"2.0": {"percent": 0}}, "promote": BOUND}, "promote: 2.0 gets no requests"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(parts, message):
    with pytest.raises(BadRequest) as refused:
        check(plan(**parts), ["1.0", "2.0"], "1.0")
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"1.0": 90, "2.0": 20}, "weights: they add up to 110"),
        ({"1.0": "90", "2.0": 10}, "The traffic is invalid: Expected `int | float`, got `str`"),
        ({"weight": HALVES}, 'The traffic has no part "weight"; there are weights, sticky, shadow, promote.'),
        ({"weights": HALVES, "stick": {}}, 'The traffic has no part "stick"'),
        ({"sticky": "x user"}, "sticky: the name of a header is needed."),
    ],
)
def test_document_for_no_versions_is_refused(document, message):
    with pytest.raises(BadRequest) as refused:
        check_form(document)

    assert refused.value.message.startswith(message)
    check_form({"weights": {"8": 50, "9": 50}, "promote": {"version": "7", "errors": 0.1}})


def test_other_version_is_promoted():
    shadow = {"shadow": {"2.0": {"percent": 5}}}

    assert pair_of(plan(promote=BOUND, **shadow), "1.0") == ("2.0", "1.0")
    assert pair_of(plan(promote=BOUND, weights=HALVES), "2.0") == ("1.0", "2.0")
    assert pair_of(plan(promote={**BOUND, "version": "1.0"}, weights=HALVES), "1.0") == ("1.0", "2.0")


def test_a_version_leaves_or_gets_another_name():
    """The others get its weight in proportion, and the sum stays 100."""
    left = without(plan(weights={"a": 50, "b": 25, "c": 25}, shadow={"c": {"percent": 5}}), "c")

    assert left == Plan({"a": 66.666667, "b": 33.333333})
    assert without(plan(weights={"a": 0, "b": 100}), "b") == Plan()
    check(left, ["a", "b"], "a")

    whole = plan(weights=HALVES, shadow={"2.0": {"percent": 25}}, promote={**BOUND, "version": "2.0"})

    assert renamed(whole, "2.0", "2.1") == plan(
        weights={"1.0": 50, "2.1": 50}, shadow={"2.1": {"percent": 25}}, promote={**BOUND, "version": "2.1"}
    )
