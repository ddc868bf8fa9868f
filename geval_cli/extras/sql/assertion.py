"""is-sql, contains-sql: SQL that parses in a dialect and uses only allowed tables and columns."""

import asyncio
import re
from importlib import import_module

import regex
from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion, CheckContext, Outcome, Subject, Tools, ValueRules, unrendered
from geval_cli.assertions.patterns import CHECK_TIMEOUT_S, compiled, within
from geval_cli.errors import Problem
from geval_cli.source.problems import hint_among

_PARSING = "geval_cli.extras.sql.statements"
"""Loaded for the first SQL, since the parser may not be installed and is slow to load."""

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

_FENCE = re.compile(r"```[ \t]*(?P<language>\w*)[ \t\r]*\n(?P<content>.*?)```", re.DOTALL)


class SqlRules(ValueRules):
    """The databases, tables and columns that an SQL output may use."""

    database_type: str = Field(
        "MySQL",
        validation_alias=AliasChoices("databaseType", "database_type"),
        description="The SQL dialect: MySQL, PostgreSQL, SQLite, BigQuery, Snowflake, ...",
    )
    allowed_tables: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedTables", "allowed_tables"),
        description=(
            "Allowed tables: names or action::database::table (select::null::orders); may be patterns."
        ),
    )
    allowed_columns: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("allowedColumns", "allowed_columns"),
        description=(
            "Allowed columns: names or action::table::column (select::null::name); may be patterns."
        ),
    )


class SqlAssertion(Assertion):
    """is-sql, contains-sql: valid SQL that uses only allowed tables and columns."""

    value_form = (SqlRules, "the rules of an SQL assertion")
    libraries = ("sqlglot",)
    extra = "sql"

    value: SqlRules | None = Field(None, description="The SQL dialect, and the allowed tables and columns.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the rules: an unknown database, or a pattern that does not compile."""
        problems: list[Problem] = []
        if self.value is None:
            return problems
        place = self.place.child("value")
        if self.value.database_type.lower() not in _DIALECTS:
            hint = hint_among(self.value.database_type.lower(), sorted(_DIALECTS))
            location = place.spelled("databaseType", "database_type")
            problems.append(Problem(f"unknown database `{self.value.database_type}`", location, hint))
        for rule in (*(self.value.allowed_tables or ()), *(self.value.allowed_columns or ())):
            try:
                compiled(rule, regex.IGNORECASE)
            except regex.error as error:
                problems.append(
                    Problem(f"broken pattern `{rule}`: {error}", place.value(), "this does not compile")
                )
        rules = [*(self.value.allowed_tables or ()), *(self.value.allowed_columns or ())]
        problems += unrendered(rules, "these rules", "write the name out", context, place.value())
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output, or for contains-sql the SQL in its code fences; the reason names the first problem."""
        rules = self.value or SqlRules()
        dialect = _DIALECTS[rules.database_type.lower()]
        texts = [subject.text]
        if self.base_type == "contains-sql":
            languages = {"", "sql", *_DIALECTS}
            fenced = [
                match["content"]
                for match in _FENCE.finditer(subject.text)
                if match["language"].lower() in languages
            ]
            texts = fenced or texts
        sql_problem = import_module(_PARSING).sql_problem
        problems = await asyncio.to_thread(
            within,
            CHECK_TIMEOUT_S,
            "parsing the SQL",
            lambda: [sql_problem(text, dialect, rules) for text in texts],
        )
        if "" in problems:
            does = "contains" if self.base_type == "contains-sql" else "is"
            return Outcome.of(True, f"the output {does} {rules.database_type} SQL")
        return Outcome.of(False, problems[0])
