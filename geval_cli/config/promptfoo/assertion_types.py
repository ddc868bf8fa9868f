"""The types of assertions that promptfoo knows, without `not-`: a cell of a table may begin with any of them."""

ASSERTION_TYPES = frozenset(
    {
        "agent-rubric", "answer-relevance", "assert-set", "bleu", "classifier", "contains", "contains-all",
        "contains-any", "contains-html", "contains-json", "contains-sql", "contains-xml", "context-faithfulness",
        "context-recall", "context-relevance", "conversation-relevance", "cost", "ends-with", "equals", "factuality",
        "finish-reason", "g-eval", "gleu", "guardrails", "human", "icontains", "icontains-all", "icontains-any",
        "is-html", "is-json", "is-refusal", "is-sql", "is-valid-function-call", "is-valid-openai-function-call",
        "is-valid-openai-tools-call", "is-xml", "javascript", "latency", "levenshtein", "llm-rubric", "max-score",
        "meteor", "model-graded-closedqa", "model-graded-factuality", "moderation", "perplexity", "perplexity-score",
        "pi", "python", "regex", "rouge-n", "ruby", "search-rubric", "select-best", "similar", "similar:cosine",
        "similar:dot", "similar:euclidean", "starts-with", "tool-call-f1", "trace-error-spans", "trace-span-count",
        "trace-span-duration", "webhook", "word-count",
    }
)  # fmt: skip
