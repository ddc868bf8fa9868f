import pytest
from support.verdicts import judged, passes, problems

from geval_cli.assertions import patterns
from geval_cli.errors import CheckTimeoutError
from geval_cli.extras.sql.assertion import SqlRules


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("SELECT * FROM t WHERE name = '日本'", True),
        ("SELECT 1; DROP TABLE x;", True),
        ("WITH x AS (SELECT 1) SELECT * FROM x", True),
        ("UPDATE t SET a = 1", True),
        ("INSERT INTO t (a) VALUES (1)", True),
        ("DELETE FROM t", True),
        ("CREATE TABLE t (a int)", True),
        ("(SELECT 1) UNION SELECT 2", True),
        ("Hello world", False),
        ("update your profile", False),
        ("select", False),
        ("Show me the money", False),
        ("Sure! SELECT 1", False),
        ("SELECT FROM WHERE", False),
        ("```sql\nSELECT 1\n```", False),
        ("", False),
        ({"a": 1}, False),
    ],
)
def test_is_sql(output: object, expected: bool) -> None:
    assert passes("is-sql", output) is expected


def test_contains_sql_looks_into_code_fences() -> None:
    assert passes("contains-sql", "Sure:\n```sql\nSELECT 1\n```\nok?")
    assert passes("contains-sql", "```\nno sql\n```\n```mysql\nSELECT 1\n```")
    assert passes("contains-sql", "SELECT 1")
    assert not passes("contains-sql", "```python\nprint(1)\n```")


@pytest.mark.parametrize(
    ("rules", "output", "reason"),
    [
        ({"allowed_tables": ("products",)}, "SELECT a FROM Products p", None),
        ({"allowed_tables": ("select::null::products",)}, "SELECT a FROM products", None),
        ({"allowed_tables": ("(select|update)::shop::.*",)}, "UPDATE shop.orders SET a = 1", None),
        ({"allowed_tables": ("select::null::products",)}, "DELETE FROM products", "delete::null::products"),
        ({"allowed_tables": ("products",)}, "SELECT a FROM orders", "select::null::orders"),
        ({"allowed_tables": ()}, "SELECT 1", None),
        ({"allowed_tables": ("a",)}, "WITH x AS (SELECT 1 FROM a) SELECT * FROM x", None),
        ({"allowed_columns": ("id", "name")}, "SELECT p.id, name FROM products p", None),
        ({"allowed_columns": ("select::products::id",)}, "SELECT p.id FROM products p", None),
        ({"allowed_columns": ("id",)}, "SELECT * FROM products", "select::null::(.*)"),
        ({"allowed_columns": ("select::null::(.*)",)}, "SELECT * FROM products", None),
        ({"allowed_columns": ("id",)}, "SELECT count(*) FROM products", None),
        ({"allowed_columns": ("a",)}, "INSERT INTO t (a, b) VALUES (1, 2)", "insert::t::b"),
    ],
)
def test_only_what_is_allowed_may_be_used(rules: dict[str, object], output: str, reason: str | None) -> None:
    result = judged("is-sql", output, value=SqlRules(**rules))
    assert result.score == float(reason is None), result.reason
    assert reason is None or (result.reason or "").endswith(reason)


def test_the_kind_of_database_decides_what_is_sql() -> None:
    only_in_postgres = "SELECT '1'::int"
    assert passes("is-sql", "SELECT `a` FROM `t`", value=SqlRules())
    assert passes("is-sql", only_in_postgres, value=SqlRules(database_type="PostgreSQL"))


def test_an_unknown_kind_of_database_and_a_broken_pattern_are_problems() -> None:
    [unknown] = problems("is-sql", value=SqlRules(database_type="Postgress"))
    assert unknown.hint == "did you mean `postgres`?"
    [broken] = problems("is-sql", value=SqlRules(allowed_tables=("(",)))
    assert broken.message.startswith("broken pattern `(`")


def test_nothing_is_written_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    passes("is-sql", "Show me the money")
    assert capfd.readouterr() == ("", "")


def test_a_rule_that_never_ends_on_a_name_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "REGEX_TIMEOUT_S", 0.1)
    rules = SqlRules(allowed_tables=("(select|update)::(.*)::(a|aa)+$",))
    with pytest.raises(CheckTimeoutError):
        judged("is-sql", f"SELECT * FROM {'a' * 60}_", value=rules)
