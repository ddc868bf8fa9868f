"""SQL read by sqlglot: whether it can be parsed, and which tables and columns it uses.

Imported where SQL is judged: the parser is an extra, and takes a while to load.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
_ACTIONS: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Insert, "insert"),
    (exp.Update, "update"),
    (exp.Delete, "delete"),
    (exp.Create, "create"),
    (exp.Drop, "drop"),
    (exp.Alter, "alter"),
    (exp.TruncateTable, "truncate"),
    (exp.Grant, "grant"),
)
_ACTING = tuple(kind for kind, _ in _ACTIONS)
_EVERYTHING = "(.*)"


def sql_problem(text: str, dialect: str, rules: "SqlRules") -> str:
    """Return the first problem of the SQL, read as a dialect of sqlglot (`""`: of none); "" when there is none."""
    what = f"the output is not {rules.database_type} SQL"
    try:
        statements = [_as_insert(item, dialect) for item in sqlglot.parse(text, dialect=dialect) if item]
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


def _as_insert(statement: exp.Expr, dialect: str) -> exp.Expr:
    """Return `REPLACE INTO`, which the parser does not know, as the `INSERT INTO` that it is; else the statement."""
    if not isinstance(statement, exp.Command) or str(statement.this).upper() != "REPLACE":
        return statement
    inserts = sqlglot.parse(f"INSERT {statement.text('expression')}", dialect=dialect)
    return next((item for item in inserts if isinstance(item, exp.Insert) and item.expression), statement)


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
        written: dict[int, list[str]] = {}
        stand_ins: set[int] = set()
        for node in statement.walk():
            for target, action in _written(node):
                table = _aliased(target, node)
                written.setdefault(id(table), []).append(action)
                stand_ins |= {id(target)} - {id(table)}
        for table in statement.find_all(exp.Table):
            if table.name and id(table) not in stand_ins and not _is_common_table(table):
                for action in dict.fromkeys(written.get(id(table), ["select"])):
                    yield f"{action}::{table.db or 'null'}::{table.name}"


def _written(node: exp.Expr) -> Iterator[tuple[exp.Table, str]]:
    """Yield the tables that one part of a statement changes, each with what is done to it."""
    found: list[tuple[Any, str]] = []
    if isinstance(node, exp.Merge):
        whens = node.args.get("whens")
        done = [when.args.get("then") for when in whens.expressions] if whens else []
        actions = [_action(then) or str(getattr(then, "name", "")).lower() for then in done if then]
        found = [(node.this, action) for action in actions if action in {"insert", "update", "delete"}]
    elif isinstance(node, exp.Copy):
        found = [(node.this, "insert")] if node.args.get("kind") else []
    elif isinstance(node, exp.Into):
        found = [(node.this, "create")]
    elif isinstance(node, exp.AlterRename):
        found = [(node.this, "alter")]
    elif isinstance(node, exp.Grant):
        found = [(node.args.get("securable"), "grant")]
    elif isinstance(node, exp.TruncateTable):
        found = [(table, "truncate") for table in node.expressions]
    elif isinstance(node, exp.Update):
        set_in = {
            column.table.lower() for item in node.expressions for column in _columns_set(item) if column.table
        }
        others = node.this.find_all(exp.Table) if node.this else ()
        found = [(node.this, "update")]
        found += [(table, "update") for table in others if table.alias_or_name.lower() in set_in]
    elif action := _action(node):
        found = [(table, action) for table in node.args.get("tables") or [node.this]]
    for target, action in found:
        table = target.this if isinstance(target, exp.Schema) else target
        table = table.args.get("table") if isinstance(table, exp.Index) else table
        if isinstance(table, exp.Table):
            yield table, action


def _columns_set(item: exp.Expr) -> Iterator[exp.Column]:
    return item.this.find_all(exp.Column) if isinstance(item, exp.EQ) else iter(())


def _aliased(table: exp.Table, node: exp.Expr) -> exp.Table:
    """Return the table that a name stands for: in `DELETE o FROM orders o` it is `orders`."""
    if table.db or table.alias or not isinstance(node, exp.Delete | exp.Update):
        return table
    others = (other for other in node.find_all(exp.Table) if other.alias.lower() == table.name.lower())
    return next(others, table)


def _is_common_table(table: exp.Table) -> bool:
    """Return whether a name is that of a WITH query that can be seen from where it stands."""
    if table.db or table.catalog:
        return False
    name = table.name.lower()
    node: exp.Expr | None = table
    inside: exp.Expr | None = None  # the query of a WITH in which the name stands
    while node is not None:
        queries = node.args.get("with_")
        if queries is not None:
            before = queries.expressions
            if inside in before and not queries.args.get("recursive"):
                before = before[: before.index(inside)]
            if any(query.alias.lower() == name for query in before):
                return True
        inside = node if isinstance(node, exp.CTE) else inside
        node = node.parent
    return False


def _columns(statements: Sequence[exp.Expr]) -> Iterator[str]:
    """Yield every column that is used, as action::table::column; `*` is written (.*)."""
    for statement in statements:
        aliases = {table.alias: table.name for table in statement.find_all(exp.Table) if table.alias}
        for column in statement.find_all(exp.Column):
            name = _EVERYTHING if isinstance(column.this, exp.Star) else column.name
            yield f"{_action_at(column)}::{aliases.get(column.table, column.table) or 'null'}::{name}"
        for star in statement.find_all(exp.Star):
            if not isinstance(star.parent, exp.Column | exp.Count):
                yield f"{_action_at(star)}::null::{_EVERYTHING}"
        for join in statement.find_all(exp.Join):
            yield from (f"{_action_at(join)}::null::{item.name}" for item in join.args.get("using") or ())
        for insert in statement.find_all(exp.Insert):
            if isinstance(insert.this, exp.Schema):
                yield from (
                    f"insert::{insert.this.this.name}::{item.name}" for item in insert.this.expressions
                )


def _action_at(node: exp.Expr) -> str:
    """Return what the innermost part of the statement around a column does that changes anything."""
    around = node.find_ancestor(exp.Alter) or node.find_ancestor(*_ACTING)  # a column is dropped by an ALTER
    return (_action(around) if around else "") or "select"


def _action(node: exp.Expr) -> str:
    return next((name for kind, name in _ACTIONS if isinstance(node, kind)), "")


def _strays(used: Iterator[str], allowed: Sequence[str]) -> list[str]:
    """Return the names used without permission. A rule is a pattern, or for short only the last name."""
    return [name for name in dict.fromkeys(used) if not any(_allows(rule, name) for rule in allowed)]


def _allows(rule: str, name: str) -> bool:
    found = name if "::" in rule else name.rpartition("::")[2]
    return rule.lower() == found.lower() or is_whole(rule, found)
