"""is-sql, contains-sql: SQL of a kind of database that can be parsed and uses nothing but what is allowed."""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence

import regex
import sqlglot
from pydantic import AliasChoices, Field
from sqlglot import exp
from sqlglot.errors import SqlglotError

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools, ValueRules
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.patterns import is_whole
from geval_cli.errors import Problem
from geval_cli.source.problems import did_you_mean

_DIALECTS = {
    "athena": "athena",
    "bigquery": "bigquery",
    "databricks": "databricks",
    "db2": "",
    "duckdb": "duckdb",
    "flinksql": "hive",
    "hive": "hive",
    "mariadb": "mysql",
    "mysql": "mysql",
    "noql": "",
    "oracle": "oracle",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redshift": "redshift",
    "snowflake": "snowflake",
    "spark": "spark",
    "sqlite": "sqlite",
    "transactsql": "tsql",
    "trino": "trino",
    "tsql": "tsql",
}
# What the parser cannot read it logs and passes on as a `Command`; that is no news for a terminal.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())

_FENCE = re.compile(r"```[ \t]*(?P<language>\w*)[ \t]*\n(?P<content>.*?)```", re.DOTALL)
_STATEMENTS = (
    exp.Query,
    exp.DML,
    exp.DDL,
    exp.Alter,
    exp.Analyze,
    exp.Commit,
    exp.Describe,
    exp.Drop,
    exp.Grant,
    exp.Merge,
    exp.Pragma,
    exp.Rollback,
    exp.Set,
    exp.Show,
    exp.Transaction,
    exp.TruncateTable,
    exp.Use,
    exp.Values,
)
_ACTIONS = (
    (exp.Insert, "insert"),
    (exp.Update, "update"),
    (exp.Delete, "delete"),
    (exp.Create, "create"),
    (exp.Drop, "drop"),
    (exp.Alter, "alter"),
    (exp.TruncateTable, "truncate"),
)
_EVERYTHING = "(.*)"


class SqlRules(ValueRules):
    """The databases, tables and columns that an SQL output may use."""

    database_type: str = Field(
        "MySQL",
        validation_alias=AliasChoices("databaseType", "database_type"),
        description="Whose SQL it is: MySQL, PostgreSQL, SQLite, BigQuery, Snowflake, ...",
    )
    allowed_tables: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedTables", "allowed_tables"),
        description="Tables by name, or as action::database::table (select::null::orders); may be patterns.",
    )
    allowed_columns: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedColumns", "allowed_columns"),
        description="Columns by name, or as action::table::column (select::null::name); may be patterns.",
    )


class SqlAssertion(Assertion):
    """is-sql, contains-sql: SQL that can be parsed and uses nothing but what is allowed."""

    value_form = (SqlRules, "the rules of an SQL assertion")

    value: SqlRules | None = Field(None, description="Whose SQL it is, and what it may use.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the rules: an unknown kind of database, a pattern that does not compile."""
        problems: list[Problem] = []
        if self.value is None:
            return problems
        place = self.place.child("value")
        if self.value.database_type.lower() not in _DIALECTS:
            near = did_you_mean(self.value.database_type.lower(), _DIALECTS)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(sorted(_DIALECTS))}"
            location = place.spelled("databaseType", "database_type")
            problems.append(Problem(f"unknown kind of database `{self.value.database_type}`", location, hint))
        for rule in (*(self.value.allowed_tables or ()), *(self.value.allowed_columns or ())):
            try:
                regex.compile(rule)
            except regex.error as error:
                problems.append(
                    Problem(f"broken pattern `{rule}`: {error}", place.value(), "this does not compile")
                )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output, or for contains-sql the SQL in its code fences; the reason says what is wrong with it."""
        rules = self.value or SqlRules()
        texts = [subject.text]
        if self.base_type == "contains-sql":
            texts = _fenced(subject.text) or texts
        problems = [await asyncio.to_thread(_problem, text, rules) for text in texts]
        if "" in problems:
            does = "contains" if self.base_type == "contains-sql" else "is"
            return Outcome.of(True, f"the output {does} {rules.database_type} SQL")
        return Outcome.of(False, problems[0])


def _fenced(text: str) -> list[str]:
    languages = {"", "sql", *_DIALECTS}
    return [match["content"] for match in _FENCE.finditer(text) if match["language"].lower() in languages]


def _problem(text: str, rules: SqlRules) -> str:
    """Return the problems of the SQL; empty when nothing is."""
    what = f"the output is not {rules.database_type} SQL"
    try:
        statements = [
            item for item in sqlglot.parse(text, dialect=_DIALECTS[rules.database_type.lower()]) if item
        ]
    except (SqlglotError, RecursionError) as error:
        return f"{what}: {_first_line(error)}"
    if not statements:
        return f"{what}: there is no statement in it"
    if not all(isinstance(statement, _STATEMENTS) and _is_whole(statement) for statement in statements):
        return f"{what}: it is no statement"
    if rules.allowed_tables is not None:
        strays = _strays(_tables(statements), rules.allowed_tables)
        if strays:
            return f"the SQL uses tables that are not allowed: {', '.join(strays)}"
    if rules.allowed_columns is not None:
        strays = _strays(_columns(statements), rules.allowed_columns)
        if strays:
            return f"the SQL uses columns that are not allowed: {', '.join(strays)}"
    return ""


def _is_whole(statement: exp.Expr) -> bool:
    """Return whether a statement is complete; the parser also accepts a lone `SELECT`, and `UPDATE your profile`."""
    if isinstance(statement, exp.Select):
        return bool(statement.expressions)
    if isinstance(statement, exp.Update):
        return bool(statement.expressions)
    return True


def _tables(statements: Sequence[exp.Expr]) -> Iterator[str]:
    """Yield every table that is used, as action::database::table."""
    for statement in statements:
        written = _target(statement)
        own_names = {cte.alias.lower() for cte in statement.find_all(exp.CTE)}
        for table in statement.find_all(exp.Table):
            if table.name and table.name.lower() not in own_names:
                action = _action(statement) if table is written else "select"
                yield f"{action}::{table.db or 'null'}::{table.name}"


def _columns(statements: Sequence[exp.Expr]) -> Iterator[str]:
    """Yield every column that is used, as action::table::column; `*` is written (.*)."""
    for statement in statements:
        aliases = {table.alias: table.name for table in statement.find_all(exp.Table) if table.alias}
        action = _action(statement)
        for column in statement.find_all(exp.Column):
            name = _EVERYTHING if isinstance(column.this, exp.Star) else column.name
            yield f"{action}::{aliases.get(column.table, column.table) or 'null'}::{name}"
        for star in statement.find_all(exp.Star):
            if not isinstance(star.parent, exp.Column | exp.Count):
                yield f"{action}::null::{_EVERYTHING}"
        if isinstance(statement, exp.Insert) and isinstance(statement.this, exp.Schema):
            yield from (
                f"insert::{statement.this.this.name}::{item.name}" for item in statement.this.expressions
            )


def _action(statement: exp.Expr) -> str:
    return next((name for kind, name in _ACTIONS if isinstance(statement, kind)), "select")


def _target(statement: exp.Expr) -> exp.Expr | None:
    """Return the table that a statement writes to."""
    if _action(statement) == "select":
        return None
    return statement.find(exp.Table)


def _strays(used: Iterator[str], allowed: Sequence[str]) -> list[str]:
    """Return the names used without permission. A rule is a pattern, or for short only the last name."""
    return [name for name in dict.fromkeys(used) if not any(_allows(rule, name) for rule in allowed)]


def _allows(rule: str, name: str) -> bool:
    found = name if "::" in rule else name.rpartition("::")[2]
    return rule.lower() == found.lower() or is_whole(rule, found)


def _first_line(error: Exception) -> str:
    lines = re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
