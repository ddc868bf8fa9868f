"""Show runs to people: live progress, tables, failures, summaries and files. Listens, never executes."""

FORMATS: dict[str, tuple[str, str]] = {
    ".json": ("report.json_file", "JsonFile"),
    ".jsonl": ("report.json_file", "JsonlFile"),
    ".parquet": ("extras.parquet", "ParquetResultsFile"),
    ".csv": ("report.csv_file", "CsvFile"),
    ".html": ("extras.html.file", "HtmlFile"),
    ".md": ("extras.pull_requests.markdown_file", "MarkdownFile"),
    ".junit.xml": ("extras.pull_requests.junit_file", "JunitFile"),
    ".sarif": ("extras.pull_requests.problem_formats", "RunProblemsFile"),
    ".codequality.json": ("extras.pull_requests.problem_formats", "RunProblemsFile"),
}
"""Each file name ending that `-o` knows, and the module and class that write it; help is made from it."""
