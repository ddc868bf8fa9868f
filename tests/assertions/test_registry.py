from importlib import import_module

import pytest

from geval_cli.assertions.registry import TYPES
from geval_cli.assertions.text import COMPARISONS
from geval_cli.config.schema import ASSERTION_SPECS, EVALUATION_SPECS


def test_every_type_of_the_config_has_exactly_one_check_and_no_check_is_out_of_reach() -> None:
    assert TYPES.keys() == ASSERTION_SPECS.keys() | EVALUATION_SPECS.keys()


@pytest.mark.parametrize("module", sorted(set(TYPES.values())))
def test_every_module_offers_a_check_and_a_judge(module: str) -> None:
    loaded = import_module(module)
    assert callable(loaded.check)
    assert callable(loaded.judge)


def test_every_text_type_has_its_comparison() -> None:
    assert COMPARISONS.keys() == {name for name, module in TYPES.items() if module.endswith(".text")}
