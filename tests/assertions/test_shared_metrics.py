"""The metrics that tests share: the same while nothing differs, and no more of them than are worth keeping."""

from geval_cli.judge.calls import SharedMetrics
from geval_cli.judge.metric import Metric


def test_equal_texts_of_the_same_sources_are_one_metric():
    shared, spec = SharedMetrics(), object()

    first = shared.find((spec,), (("Be clear.",), None), lambda: Metric("clarity"))
    second = shared.find((spec,), (("Be clear.",), None), lambda: Metric("made again"))

    assert second is first


def test_other_texts_and_other_sources_are_other_metrics():
    shared, spec, other = SharedMetrics(), object(), object()
    made = iter("abcd")

    names = [
        shared.find(sources, texts, lambda: Metric(next(made))).name
        for sources, texts in (
            ((spec,), (("Be clear.",), None)),
            ((spec,), (("Be brief.",), None)),
            ((spec,), (("Be clear.",), ("Read it.",))),
            ((other,), (("Be clear.",), None)),
        )
    ]

    assert names == ["a", "b", "c", "d"]


def test_no_source_takes_the_place_of_one_that_is_gone():
    shared = SharedMetrics()

    names = [shared.find((object(),), (), lambda n=number: Metric(str(n))).name for number in range(100)]

    assert names == [str(number) for number in range(100)]


def test_a_config_with_criteria_of_its_own_in_every_test_does_not_fill_the_memory():
    shared, spec = SharedMetrics(), object()
    for number in range(2_000):
        shared.find((spec,), ((f"Criterion {number}.",), None), lambda: Metric("m"))

    assert shared.find((spec,), (("Criterion 976.",), None), lambda: Metric("again")).name == "m"
    assert shared.find((spec,), (("Criterion 975.",), None), lambda: Metric("again")).name == "again"
