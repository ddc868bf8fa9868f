"""Show runs to people: live progress, tables, failures, summaries and files. Listens, never executes."""

FORMATS: dict[str, tuple[str, str]] = {
    ".json": ("json_file", "JsonFile"),
    ".jsonl": ("json_file", "JsonlFile"),
    ".parquet": ("parquet_file", "ParquetResultsFile"),
    ".csv": ("csv_file", "CsvFile"),
    ".html": ("html_file", "HtmlFile"),
    ".md": ("markdown_file", "MarkdownFile"),
    ".junit.xml": ("junit_file", "JunitFile"),
    ".sarif": ("problem_formats", "RunProblemsFile"),
    ".codequality.json": ("problem_formats", "RunProblemsFile"),
}
"""Each file name ending that `-o` knows, and the module and class of this room that write it; help is made from it."""
