"""Parse SQL with sqlglot: whether it is valid, and which tables and columns it uses.

Imported only when SQL is judged: the parser is an optional dependency and slow to load.
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

# The parser logs what it cannot parse and returns it as a `Command`; that does not belong on the terminal.
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
_ABOUT_TABLES = frozenset(
    (
        *("foreign_key_check", "foreign_key_list", "index_list", "integrity_check", "quick_check"),
        *("storage_info", "table_info", "table_xinfo"),
        *("columns", "create table", "create view", "index"),
    )
)
"""The properties that `PRAGMA` and `SHOW` can report of a named table."""
_RUNS_SQL = frozenset(
    ("dblink", "external_query", "openquery", "openrowset", "query", "query_to_xml", "table_to_xml")
)
"""Functions of some database that execute SQL given as text."""
_READS = (exp.Query, exp.DML, exp.Table, exp.Join, exp.Pragma)
_SEES_OUTPUTS = (exp.Order, exp.Group, exp.Having, exp.Qualify, exp.Distinct)
"""Clauses of a query in which a name may refer to an output column."""
_EVERYTHING = "(.*)"
_RUN_BY_MYSQL = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[ \t][^\n]*|\#[^\n]*"""
    r"""|/\*M?!\d*(?P<sql>.*?)\*/|/\*.*?\*/""",
    re.DOTALL,
)
"""Texts and comments. MySQL executes what is in `/*! ... */`, and MariaDB what is in `/*M! ... */`."""


def sql_problem(text: str, dialect: str, rules: "SqlRules") -> str:
    """Return the first problem with the SQL, or "". `dialect` is sqlglot's name; "" is its generic dialect."""
    what = f"the output is not {rules.database_type} SQL"
    if dialect == "mysql":
        text = _RUN_BY_MYSQL.sub(
            lambda found: found[0] if found["sql"] is None else f" {found['sql']} ", text
        )
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
    """Return `REPLACE INTO`, which the parser does not support, as `INSERT INTO`; return other statements unchanged."""
    if not isinstance(statement, exp.Command) or str(statement.this).upper() != "REPLACE":
        return statement
    inserts = sqlglot.parse(f"INSERT {statement.text('expression')}", dialect=dialect)
    return next((item for item in inserts if isinstance(item, exp.Insert) and item.expression), statement)


def _is_whole(statement: exp.Expr) -> bool:
    """Return whether a statement is complete; the parser also accepts a bare `SELECT`, and `UPDATE your profile`."""
    if isinstance(statement, exp.Select):
        return bool(statement.expressions)
    if isinstance(statement, exp.Update):
        return bool(statement.expressions)
    return True


def _tables(statements: Sequence[exp.Expr]) -> Iterator[str]:
    """Yield every table in use, as action::database::table."""
    for statement in statements:
        written: dict[int, list[str]] = {}
        stand_ins: set[int] = set()
        for node in statement.walk():
            for target, action in _written(node):
                # The table that a name refers to: in `DELETE o FROM orders o` it is `orders`.
                if target.db or target.alias or not isinstance(node, exp.Delete | exp.Update):
                    table = target
                else:
                    others = (
                        other
                        for other in node.find_all(exp.Table)
                        if other.alias.lower() == target.name.lower()
                    )
                    table = next(others, target)
                written.setdefault(id(table), []).append(action)
                stand_ins |= {id(target)} - {id(table)}
            yield from _described(node)
            yield from _named(node)
        for table in statement.find_all(exp.Table):
            if table.name and id(table) not in stand_ins and not _common_query(table):
                for action in dict.fromkeys(written.get(id(table), ["select"])):
                    yield f"{action}::{table.db or 'null'}::{table.name}"


def _described(node: exp.Expr) -> Iterator[str]:
    """Yield the table that a `SHOW`, a `PRAGMA` or a pragma function describes, as action::database::table."""
    said, of, given = node, "", None
    if isinstance(node, exp.Show):
        of = node.text("db")
        given = node.args.get("target")
    elif isinstance(node, exp.EQ) and isinstance(node.parent, exp.Pragma):  # also `PRAGMA a(b)` of SQLite
        said, given = node.this, node.expression
        said, of = (said.expression, said.this.name) if isinstance(said, exp.Dot) else (said, of)
    elif isinstance(node, exp.Anonymous) and (
        node.find_ancestor(exp.Pragma) or node.name.lower().startswith("pragma_")
    ):
        of = node.parent.this.name if isinstance(node.parent, exp.Dot) else of
        given = next(iter(node.expressions), None)
    is_number = isinstance(given, exp.Literal) and not given.is_string
    if given and given.name and not is_number and said.name.lower().removeprefix("pragma_") in _ABOUT_TABLES:
        yield f"select::{of or 'null'}::{given.name}"


def _named(node: exp.Expr) -> Iterator[str]:
    """Yield the tables passed to `TABLE(orders)` and the like, and functions that run SQL from a string.

    Such a string could name any table, so the function's own name stands for them.
    """
    if isinstance(node, exp.Anonymous) and node.name.lower() in _RUNS_SQL:
        yield f"select::null::{node.name}"
    for given in _given(node):
        if isinstance(given, exp.Column):
            yield f"select::{given.table or 'null'}::{given.name}"
        elif isinstance(given, exp.Literal) and given.is_string:
            *_, of, name = ("null", *given.name.replace('"', "").split("."))
            yield f"select::{of}::{name}"
        elif isinstance(given, exp.Parameter | exp.Placeholder):
            yield f"select::null::${given.name}"


def _given(node: exp.Expr) -> Sequence[exp.Expr]:
    """Return the arguments of `TABLE(...)` or of a similar table function; empty for anything else."""
    if isinstance(node, exp.TableFromRows):
        return [node.this]
    if not isinstance(node, exp.Anonymous) or node.name.lower() not in {"table", "query_table"}:
        return []
    parts = [part.expressions if isinstance(part, exp.Array) else [part] for part in node.expressions]
    return [item for part in parts for item in part]


def _written(node: exp.Expr) -> Iterator[tuple[exp.Table, str]]:
    """Yield the tables that a node of a statement changes, each with the action."""
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


def _common_query(table: exp.Table) -> exp.CTE | None:
    """Return the WITH query that a table name refers to, if one is in scope."""
    if table.db or table.catalog:
        return None
    name = table.name.lower()
    node: exp.Expr | None = table
    inside: exp.Expr | None = None  # the WITH query that contains the name
    while node is not None:
        queries = node.args.get("with_")
        if queries is not None:
            before = queries.expressions
            if inside in before and not queries.args.get("recursive"):
                before = before[: before.index(inside)]
            found = next((query for query in before if query.alias.lower() == name), None)
            if found is not None:
                return found  # type: ignore[no-any-return]
        inside = node if isinstance(node, exp.CTE) else inside
        node = node.parent
    return None


def _columns(statements: Sequence[exp.Expr]) -> Iterator[str]:
    """Yield every table column in use, as action::table::column; `*` appears as `(.*)`."""
    for statement in statements:
        aliases = {table.alias: table.name for table in statement.find_all(exp.Table) if table.alias}
        known: dict[int, set[str]] = {}
        for column in statement.find_all(exp.Column):
            name = _EVERYTHING if isinstance(column.this, exp.Star) else column.name
            is_table = column.parent is not None and column in _given(column.parent)
            if not is_table and not _is_output(column, column.name.lower(), column.table.lower(), known):
                yield f"{_action_at(column)}::{aliases.get(column.table, column.table) or 'null'}::{name}"
        for star in statement.find_all(exp.Star):
            if not isinstance(star.parent, exp.Column | exp.Count) and not _is_output(star, "", "", known):
                yield f"{_action_at(star)}::null::{_EVERYTHING}"
        for join in statement.find_all(exp.Join):
            using = () if _is_output(join, "", "", known) else join.args.get("using") or ()
            yield from (f"{_action_at(join)}::null::{item.name}" for item in using)
        for insert in statement.find_all(exp.Insert):
            if isinstance(insert.this, exp.Schema):
                yield from (
                    f"insert::{insert.this.this.name}::{item.name}" for item in insert.this.expressions
                )
            elif isinstance(insert.this, exp.Table):  # names no columns, so it writes all
                yield f"insert::{insert.this.name}::{_EVERYTHING}"


def _is_output(node: exp.Expr, name: str, of: str, known: dict[int, set[str]]) -> bool:
    """Return whether a column name refers to the output of a query, whose own columns are checked there.

    `of` is the qualifier of `name`; "" if it has none. Candidates are the outputs of the enclosing query, in clauses
    that may refer to them, and those of the sources in its FROM. `known` caches the output names of each.
    """

    def gives(source: exp.Expr, wanted: str) -> bool:
        if id(source) not in known:
            known[id(source)] = _outputs(source)
        return wanted in known[id(source)]

    query = node.parent
    while query is not None:
        # Skip quickly over conditions, which may be nested hundreds deep.
        if isinstance(query, exp.Condition) and not isinstance(query, _READS):
            node, query = query, query.parent
            continue
        if isinstance(query, exp.Pragma):
            return True  # the name of a table
        if isinstance(query, exp.SetOperation) and isinstance(node, exp.Order):
            return True
        if (
            isinstance(query, exp.Select)
            and isinstance(node, _SEES_OUTPUTS)
            and not of
            and gives(query, name)
        ):
            return True
        sources = list(_sources(query))
        called = [source for source in sources if of and of == source.alias_or_name.lower()]
        if called or (sources and not of):
            meant = called or sources
            return all(map(_is_query, meant)) or any(gives(source, name) for source in meant)
        if any(gives(source, of) for source in sources):
            return True  # a field of an output
        node, query = query, query.parent
    return False


def _sources(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the sources of a query or a DML statement: the parts of its FROM, and the table that it changes."""
    if isinstance(query, exp.Update | exp.Delete | exp.Merge) and query.this:
        yield query.this
    begins = query.args.get("from_") or query.args.get("using")
    joins = [*(query.args.get("joins") or ()), *(query.args.get("laterals") or ())]
    for part in [*(begins if isinstance(begins, list) else [begins]), *joins]:
        source = part.this if isinstance(part, exp.From | exp.Join) else part
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table):
            yield source.this  # a table in parentheses
            source = source.this
        elif isinstance(source, exp.Expr):
            yield source
        if isinstance(source, exp.Table | exp.Subquery):
            yield from _sources(source)


def _is_query(source: exp.Expr) -> bool:
    """Return whether a source in a FROM is a query or made of columns, not a table or a table function."""
    return not isinstance(source, exp.Table) or _common_query(source) is not None


def _outputs(source: exp.Expr) -> set[str]:
    """Return the column names that a source in a FROM states explicitly; for a SELECT, only its aliases."""
    if isinstance(source, exp.Select):
        return {item.alias.lower() for item in source.expressions if isinstance(item, exp.Alias)}
    common = _common_query(source) if isinstance(source, exp.Table) else None
    names = source.alias_column_names or (common.alias_column_names if common else [])
    query = common or source
    made = query.this if isinstance(query, exp.CTE | exp.Subquery) else None
    if names:
        pass
    elif isinstance(made, exp.Query):
        names = made.named_selects
    elif made is not None:  # a DML statement
        returning = made.args.get("returning")
        names = [item.alias_or_name for item in returning.expressions] if returning else []
    elif not isinstance(source, exp.Table) or isinstance(source.this, exp.Func):
        names = [source.alias]  # a function's alias is also the name of its only column
    return {name.lower() for name in names} - {"*", ""}


def _action_at(node: exp.Expr) -> str:
    """Return the action of the innermost changing statement around a column, else `select`."""
    around = node.find_ancestor(exp.Alter) or node.find_ancestor(*_ACTING)  # a column is dropped by an ALTER
    return (_action(around) if around else "") or "select"


def _action(node: exp.Expr) -> str:
    return next((name for kind, name in _ACTIONS if isinstance(node, kind)), "")


def _strays(used: Iterator[str], allowed: Sequence[str]) -> list[str]:
    """Return the names in use that no rule allows. A rule is a pattern, or just the last part of the name."""
    return [name for name in dict.fromkeys(used) if not any(_allows(rule, name) for rule in allowed)]


def _allows(rule: str, name: str) -> bool:
    found = name if "::" in rule else name.rpartition("::")[2]
    return rule.lower() == found.lower() or is_whole(rule, found)
