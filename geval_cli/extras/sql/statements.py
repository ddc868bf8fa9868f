"""SQL read by sqlglot: whether it can be parsed, and which tables and columns it uses.

Imported where SQL is judged: the parser is an extra, and takes a while to load.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from geval_cli.assertions.patterns import is_whole

if TYPE_CHECKING:
    from geval_cli.extras.sql.assertion import SqlRules

# What the parser cannot read it logs and passes on as a `Command`; that is no news for a terminal.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())

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


def sql_problem(text: str, dialect: str, rules: "SqlRules") -> str:
    """Return the first problem of the SQL, read as a dialect of sqlglot (`""`: of none); "" when there is none."""
    what = f"the output is not {rules.database_type} SQL"
    try:
        statements = [item for item in sqlglot.parse(text, dialect=dialect) if item]
    except (SqlglotError, RecursionError) as error:
        lines = re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()
        first_line = lines[0].rstrip(".") if lines else type(error).__name__
        return f"{what}: {first_line}"
    if not statements:
        return f"{what}: there is no statement in it"
    if not all(isinstance(statement, _STATEMENTS) and _is_whole(statement) for statement in statements):
        return f"{what}: it is not a statement"
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
        written = None if _action(statement) == "select" else statement.find(exp.Table)
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


def _strays(used: Iterator[str], allowed: Sequence[str]) -> list[str]:
    """Return the names used without permission. A rule is a pattern, or for short only the last name."""
    return [name for name in dict.fromkeys(used) if not any(_allows(rule, name) for rule in allowed)]


def _allows(rule: str, name: str) -> bool:
    found = name if "::" in rule else name.rpartition("::")[2]
    return rule.lower() == found.lower() or is_whole(rule, found)
