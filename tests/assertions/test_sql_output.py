import sys

import pytest
import sqlglot
from support.verdicts import judged, passes, problems

from geval_cli.assertions import patterns
from geval_cli.errors import CheckTimeoutError
from geval_cli.extras.sql.assertion import SqlRules
from geval_cli.extras.sql.statements import _columns


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
    assert passes("contains-sql", "Sure:\r\n```sql\r\nSELECT 1\r\n```\r\n")
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
        ({"allowed_columns": ("a",)}, "INSERT INTO t VALUES (1, 2)", "insert::t::(.*)"),
        ({"allowed_columns": ("a",)}, "INSERT INTO t SELECT a FROM u", "insert::t::(.*)"),
        ({"allowed_columns": ("a", "insert::t::(.*)")}, "INSERT INTO t SELECT a FROM u", None),
    ],
)
def test_only_what_is_allowed_may_be_used(rules: dict[str, object], output: str, reason: str | None) -> None:
    result = judged("is-sql", output, value=SqlRules(**rules))
    assert result.score == float(reason is None), result.reason
    assert reason is None or (result.reason or "").endswith(reason)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("SELECT 1 /*!50000 FROM secret */", "select::null::secret"),
        ("SELECT 1 /*M! FROM secret */", "select::null::secret"),
        ("SELECT '/* it''s' /*! , x FROM secret */", "select::null::secret"),
        ("SELECT '/*! FROM secret */'", None),
        ("SELECT 1 /* /*! FROM secret */", None),
        ("SELECT 1 -- it's\n/*! FROM secret */", "select::null::secret"),
    ],
)
def test_comments_that_mysql_runs_are_sql(output: str, reason: str | None) -> None:
    result = judged("is-sql", output, value=SqlRules(allowed_tables=("orders",)))
    assert result.score == float(reason is None), result.reason
    assert reason is None or (result.reason or "").endswith(reason)


ORDERS_ONLY = ("select::null::orders",)


@pytest.mark.parametrize(
    ("output", "written"),
    [
        ("WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x", "delete::null::orders"),
        ("WITH x AS (UPDATE orders SET a = 1 RETURNING *) SELECT * FROM x", "update::null::orders"),
        ("WITH x AS (INSERT INTO orders VALUES (1) RETURNING *) SELECT * FROM x", "insert::null::orders"),
        ("MERGE INTO orders USING orders o ON true WHEN MATCHED THEN DELETE", "delete::null::orders"),
        (
            "MERGE INTO orders USING orders o ON true WHEN MATCHED THEN UPDATE SET a = 1",
            "update::null::orders",
        ),
        (
            "MERGE INTO orders USING orders o ON true WHEN NOT MATCHED THEN INSERT VALUES (1)",
            "insert::null::orders",
        ),
        ("COPY orders FROM 'rows.csv'", "insert::null::orders"),
        ("COPY orders TO 'rows.csv'", None),
        ("GRANT ALL ON orders TO bob", "grant::null::orders"),
        ("SELECT * INTO copied FROM orders", "create::null::copied"),
        ("SELECT * FROM orders FOR UPDATE", None),
        ("UPDATE o SET a = 1 FROM orders o", "update::null::orders"),
        ("DELETE FROM orders AS o USING orders AS p", "delete::null::orders"),
    ],
)
def test_whatever_changes_a_table_is_no_select(output: str, written: str | None) -> None:
    rules = SqlRules(database_type="PostgreSQL", allowed_tables=ORDERS_ONLY)
    result = judged("is-sql", output, value=rules)
    assert result.score == float(written is None), result.reason
    assert written is None or (result.reason or "").endswith(f"not allowed: {written}")


@pytest.mark.parametrize(
    ("output", "stray"),
    [
        ("DELETE orders, secrets FROM orders JOIN secrets", "delete::null::secrets"),
        ("DELETE o FROM orders o JOIN secrets", None),
        ("DELETE s FROM orders o JOIN secrets s", "delete::null::secrets"),
        ("UPDATE orders JOIN secrets SET secrets.a = 1", "update::null::secrets"),
        ("UPDATE orders o, secrets s SET s.a = 1", "update::null::secrets"),
        ("UPDATE orders o, secrets s SET o.a = s.a", None),
        ("DROP TABLE orders, secrets", "drop::null::secrets"),
        ("TRUNCATE TABLE orders, secrets", "truncate::null::secrets"),
        ("REPLACE INTO secrets VALUES (1)", "insert::null::secrets"),
        ("REPLACE INTO orders VALUES (1)", None),
    ],
)
def test_every_table_that_a_statement_changes_counts(output: str, stray: str | None) -> None:
    allowed = ("(delete|update|drop|insert|truncate|select)::null::orders", "select::null::secrets")
    result = judged("is-sql", output, value=SqlRules(allowed_tables=allowed))
    assert result.score == float(stray is None), result.reason
    assert stray is None or (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize(
    ("output", "stray"),
    [
        ("WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets", "select::null::secrets"),
        ("WITH secrets AS (SELECT * FROM orders) SELECT * FROM app.secrets", "select::app::secrets"),
        (
            "SELECT * FROM (WITH secrets AS (SELECT 1) SELECT * FROM secrets) q, secrets",
            "select::null::secrets",
        ),
        ("WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b", "select::null::b"),
        ("WITH a AS (SELECT * FROM orders), b AS (SELECT * FROM A) SELECT * FROM B", None),
        ("WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT * FROM t) SELECT * FROM t", None),
        ("WITH t AS (SELECT 1) SELECT (SELECT max(x) FROM t) FROM orders", None),
    ],
)
def test_the_name_of_a_with_query_hides_a_table_only_where_it_can_be_seen(
    output: str, stray: str | None
) -> None:
    result = judged("is-sql", output, value=SqlRules(database_type="PostgreSQL", allowed_tables=ORDERS_ONLY))
    assert result.score == float(stray is None), result.reason
    assert stray is None or (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize(
    ("output", "stray"),
    [
        ("WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT a FROM x", "update::null::a"),
        ("SELECT a FROM t JOIN u USING (b)", "select::null::b"),
        ("ALTER TABLE t DROP COLUMN a", "alter::null::a"),
        ("WITH x AS (INSERT INTO t (b) VALUES (1) RETURNING a) SELECT a FROM x", "insert::t::b"),
    ],
)
def test_columns_count_by_what_is_done_to_them(output: str, stray: str) -> None:
    allowed = ("select::null::a", "insert::null::a", r"(update|insert)::null::\(\.\*\)")
    result = judged("is-sql", output, value=SqlRules(database_type="PostgreSQL", allowed_columns=allowed))
    assert (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize(
    ("output", "stray"),
    [
        ("SELECT id AS k FROM t ORDER BY k", None),
        ("SELECT id AS k FROM t ORDER BY lower(k), K", None),
        ("SELECT id AS k, count(*) AS n FROM t GROUP BY k HAVING n > 1", None),
        ("SELECT DISTINCT ON (k) id AS k FROM t", None),
        ("SELECT id AS k FROM t UNION SELECT id FROM u ORDER BY k", None),
        ("SELECT id AS k FROM t WHERE k = 1", "select::null::k"),
        ("SELECT id AS k FROM t ORDER BY t.k", "select::t::k"),
        ("SELECT id AS k, row_number() OVER (ORDER BY k) FROM t", "select::null::k"),
        ("SELECT secret AS id FROM t ORDER BY id", "select::null::secret"),
        ("WITH r AS (SELECT id AS k FROM t) SELECT k FROM r", None),
        ("WITH r AS (SELECT id AS k FROM t) SELECT q.k FROM r q", None),
        ("WITH r AS (SELECT secret AS k FROM t) SELECT k FROM r", "select::null::secret"),
        ("WITH r AS (SELECT * FROM t) SELECT id FROM r", "select::null::(.*)"),
        ("WITH r(k) AS (SELECT id FROM t) SELECT k FROM r JOIN t ON t.id = r.k", None),
        ("WITH r(k) AS (SELECT id FROM t) SELECT secret FROM r JOIN t ON t.id = r.k", "select::null::secret"),
        ("WITH r(k) AS (SELECT id FROM t) SELECT t.k FROM r, t", "select::t::k"),
        ("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n FROM r", None),
        ("WITH d AS (DELETE FROM t RETURNING id AS k) SELECT k FROM d, u", None),
        ("SELECT k FROM (SELECT id AS k FROM t) s", None),
        ("SELECT * FROM (SELECT id FROM t) s", None),
        ("SELECT s.* FROM (SELECT id FROM t) s, u", None),
        ("SELECT * FROM (SELECT id FROM t) s, u", "select::null::(.*)"),
        ("SELECT s.id FROM (SELECT k FROM t) s, (SELECT id AS k FROM t) u", "select::null::k"),
        ("SELECT k FROM (SELECT id AS k FROM t) s JOIN (SELECT id AS k FROM t) u USING (k)", None),
        ("SELECT id FROM t JOIN (SELECT id AS k FROM t) u USING (k)", "select::null::k"),
        ("SELECT secret FROM (t JOIN u ON t.id = u.id)", "select::null::secret"),
        ("SELECT n FROM generate_series(1, 3) AS n", None),
        ("SELECT v.k FROM (VALUES (1)) v(k)", None),
        ("SELECT tag.k, tag FROM t, unnest(t.id) AS tag", None),
        ("SELECT * FROM dblink('secrets') AS s(id int)", "select::null::(.*)"),
        ("SELECT s.secret FROM app_secrets() s", "select::null::secret"),
        ("UPDATE t SET id = s.k FROM (SELECT max(id) AS k FROM u) s", None),
        ("UPDATE t SET secret = s.k FROM (SELECT max(id) AS k FROM u) s", "update::null::secret"),
        ("DELETE FROM t USING (SELECT id AS k FROM u) s WHERE t.id = s.k", None),
        ("MERGE INTO t USING (SELECT id AS k FROM u) s ON t.id = s.k WHEN MATCHED THEN DELETE", None),
    ],
)
def test_the_name_of_an_output_is_no_column_where_it_can_be_seen(output: str, stray: str | None) -> None:
    rules = SqlRules(database_type="PostgreSQL", allowed_columns=("id",))
    result = judged("is-sql", output, value=rules)
    assert result.score == float(stray is None), result.reason
    assert stray is None or (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize(
    ("kind", "output", "stray"),
    [
        ("SQLite", "PRAGMA table_info(secrets)", "select::null::secrets"),
        ("SQLite", "PRAGMA main.TABLE_XINFO('secrets')", "select::main::secrets"),
        ("SQLite", "PRAGMA index_list = secrets", "select::null::secrets"),
        ("SQLite", "SELECT * FROM pragma_table_info('secrets')", "select::null::secrets"),
        ("SQLite", "PRAGMA table_info(orders)", None),
        ("SQLite", "PRAGMA foreign_keys = ON", None),
        ("SQLite", "PRAGMA integrity_check(10)", None),
        ("DuckDB", "PRAGMA table_info('secrets')", "select::null::secrets"),
        ("DuckDB", "PRAGMA main.table_info('secrets')", "select::main::secrets"),
        ("MySQL", "SHOW COLUMNS FROM secrets", "select::null::secrets"),
        ("MySQL", "SHOW INDEX FROM secrets FROM app", "select::app::secrets"),
        ("MySQL", "SHOW CREATE TABLE app.secrets", "select::app::secrets"),
        ("MySQL", "SHOW CREATE TABLE orders", None),
        ("MySQL", "SHOW CREATE DATABASE secrets", None),
        ("MySQL", "DESCRIBE secrets", "select::null::secrets"),
        ("Snowflake", "SHOW COLUMNS IN TABLE secrets", "select::null::secrets"),
    ],
)
def test_a_table_that_is_described_counts(kind: str, output: str, stray: str | None) -> None:
    rules = SqlRules(database_type=kind, allowed_tables=("orders",), allowed_columns=(r"\(\.\*\)",))
    result = judged("is-sql", output, value=rules)
    assert result.score == float(stray is None), result.reason
    assert stray is None or (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize(
    ("kind", "output", "stray"),
    [
        ("Snowflake", "SELECT * FROM TABLE(secrets)", "select::null::secrets"),
        ("Snowflake", "SELECT * FROM TABLE(app.secrets)", "select::app::secrets"),
        ("Snowflake", "SELECT * FROM TABLE('app.\"secrets\"')", "select::app::secrets"),
        ("Snowflake", "SELECT * FROM TABLE($t)", "select::null::$t"),
        ("Snowflake", "SELECT * FROM TABLE(f(TABLE(secrets)))", "select::null::secrets"),
        ("Snowflake", "SELECT id FROM TABLE(orders)", None),
        ("Snowflake", "SELECT * FROM TABLE(SPLIT_TO_TABLE('secrets', ','))", None),
        ("Oracle", "SELECT * FROM TABLE(secrets)", "select::null::secrets"),
        ("Trino", "SELECT * FROM TABLE(f(input => TABLE(secrets)))", "select::null::secrets"),
        ("DuckDB", "SELECT * FROM query_table('secrets')", "select::null::secrets"),
        ("DuckDB", "SELECT * FROM query_table(['orders', 'secrets'])", "select::null::secrets"),
        ("DuckDB", "SELECT * FROM query('FROM secrets')", "select::null::query"),
        ("TransactSQL", "SELECT * FROM OPENQUERY(s, 'SELECT 1')", "select::null::OPENQUERY"),
        ("PostgreSQL", "SELECT query_to_xml('SELECT 1', true, true, '')", "select::null::query_to_xml"),
        ("PostgreSQL", "SELECT * FROM generate_series(1, 3)", None),
    ],
)
def test_a_table_that_a_function_is_given_counts(kind: str, output: str, stray: str | None) -> None:
    rules = SqlRules(database_type=kind, allowed_tables=("orders",), allowed_columns=("id", r"\(\.\*\)"))
    result = judged("is-sql", output, value=rules)
    assert result.score == float(stray is None), result.reason
    assert stray is None or (result.reason or "").endswith(f"not allowed: {stray}")


@pytest.mark.parametrize("output", ["Replace the battery", "Replace into the box", "REPLACE INTO t"])
def test_words_that_begin_as_a_replace_are_no_sql(output: str) -> None:
    assert not passes("is-sql", output)


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


def calls_to_check(query: str) -> int:
    """How many calls it takes to find the columns of a query: the same number on any machine."""
    statements = sqlglot.parse(query)
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        del frame, argument
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        found = list(_columns([item for item in statements if item is not None]))
    finally:
        sys.setprofile(before)
    assert found
    return count


@pytest.mark.parametrize(
    "shape",
    [
        "SELECT {aliases} FROM t ORDER BY {names}",
        "SELECT {aliases} FROM t GROUP BY {names}",
        "SELECT {names} FROM (SELECT {aliases} FROM t) AS s",
        "WITH s AS (SELECT {aliases} FROM t) SELECT {names} FROM s",
        "SELECT {names} FROM t",
    ],
)
def test_the_work_grows_with_the_columns_and_not_with_their_square(shape: str) -> None:
    def work(columns: int) -> int:
        names = [f"n{number}" for number in range(columns)]
        aliases = ", ".join(f"c{number} AS {name}" for number, name in enumerate(names))
        return calls_to_check(shape.format(aliases=aliases, names=", ".join(names)))

    small, large = work(50), work(400)
    assert large < 12 * small  # eight times the columns; their square is 64 times as many
