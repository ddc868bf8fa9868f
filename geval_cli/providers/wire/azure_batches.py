"""Azure OpenAI's batches: OpenAI's, with a deployment in the place of a model.

Only a deployment of the type Global Batch or Data Zone Batch takes batches, and it takes nothing else; so direct
requests go to the deployment that the provider's id names, and batches to `batch_deployment`. Paths and lines are
those of Microsoft's pages (`azure-ai-docs`, articles/ai-foundry/openai/includes/batch/batch-python.md).
"""

from typing import Any, BinaryIO

from geval_cli.errors import ProviderRequestError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.providers.wire.batch_api import FileNotReadyError, RemoteBatch
from geval_cli.providers.wire.openai_batches import OpenAIBatches

_BEING_READ = frozenset({"pending", "running", "notRunning", "not_running"})
_REFUSED = frozenset({"error", "failed"})


class AzureBatches(OpenAIBatches):
    """The batches of one resource. They are found again by their file, as no name of ours is kept."""

    def base_path(self, path: str) -> str:
        return path.partition("/deployments/")[0]

    def request_path(self, path: str) -> str:
        return "/v1/responses" if path == "/responses" else path

    def line(self, custom_id: str, body: bytes) -> bytes:
        asked = {**decode_json(body), "model": self._endpoint.batch_deployment}
        return super().line(custom_id, encode_json(asked))

    def wish(self, batch_id: str, file_id: str | None) -> dict[str, Any]:
        wish = super().wish(batch_id, file_id)
        del wish["metadata"]  # no version of the deployment API describes it
        return wish

    async def create(self, batch_id: str, file_id: str | None, file: BinaryIO | None) -> RemoteBatch:
        name = self._endpoint.id
        found = await self.ask_for(
            "GET",
            f"/files/{file_id}",
            None,
            "an answer without a file's status",
            lambda found: isinstance(found, dict) and isinstance(found.get("status"), str),
        )
        if found["status"] in _BEING_READ:
            raise FileNotReadyError
        if found["status"] in _REFUSED:
            reason = self._endpoint.secrets.redact(str(found.get("status_details") or "no reason was given"))
            raise ProviderRequestError(f"{name} refused the file of a batch: {reason}", provider_id=name)
        return await super().create(batch_id, file_id, file)
