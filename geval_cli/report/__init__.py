"""Reports of runs for people: live progress, tables, failures, summaries and files. They listen and never execute."""

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
"""Each file name ending that `-o` accepts, with the module and class that write it; the help text is built from it."""
