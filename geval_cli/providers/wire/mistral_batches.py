"""Mistral's batch jobs: files as at OpenAI, but jobs of one model each, with names of their own.

Paths, fields and states are those of `mistralai` 3.7 (`client/jobs.py`, `models/batchjob.py`); a job takes up to a
million requests (docs.mistral.ai/studio-api/batch-processing).
"""

from typing import Any

from geval_cli.providers.wire.batch_api import joined
from geval_cli.providers.wire.openai_batches import OpenAIBatches

_PAGE = 100
_HOURS = 24


class MistralBatches(OpenAIBatches):
    """The batch jobs of one workspace."""

    most_requests = 1_000_000
    collection = "/batch/jobs"

    def line(self, custom_id: str, body: bytes) -> bytes:
        return joined({"custom_id": custom_id}, "body", body)

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        return {
            "input_files": [file_id],
            "model": self._endpoint.model,
            "endpoint": self._path,
            "metadata": {"geval_batch": batch_id},
            "timeout_hours": _HOURS,
        }

    def first_page(self) -> dict[str, Any]:
        return {"page": 0, "page_size": _PAGE, "order_by": "-created"}

    def next_page(self, page: dict[str, Any], said: Any, items: list[Any]) -> dict[str, Any] | None:
        return {**page, "page": page["page"] + 1} if items else None
