"""Hosts of comments: GitHub pull requests and GitLab merge requests, found from the variables of their CI.

Sources: GitHub's REST API for issue comments and pull requests, GitLab's API for notes on merge requests, and the
variables that both set in CI.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from geval_cli.errors import ProviderAuthError, ProviderRequestError, ProviderResponseError, UsageError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.messages import HttpCall, json_bytes
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.refusals import CallContext

_PAGE, _MOST_PAGES = 100, 50
_TIMEOUT_S = 30.0
_NOT_PERMITTED = frozenset({401, 403, 404})
"""Statuses with which hosts refuse a token that lacks the permission; 404 hides that the resource exists."""
_ACTIONS_USER = "github-actions[bot]"
"""The user that the token of a GitHub workflow comments as; such a token cannot look it up."""
_NOT_IN_CI = "give the number with --pr, or run it in the CI of a pull request"


class Host(Protocol):
    """A pull request that can be commented on."""

    @property
    def shown(self) -> str:
        """Return the name used in messages, such as `octo/app#12`."""
        ...

    async def post(self, text: str, marker: str) -> str:
        """Update our comment that begins with `marker`, or create it; return its URL, "" if unknown.

        Raises:
            UsageError: the host refuses.
            ProviderError: the host cannot be reached or its response is unexpected.
        """
        ...


class _Api:
    """A client for the host's API that sends and receives JSON, authenticated by a token."""

    def __init__(self, name: str, base: str, headers: Mapping[str, str], token: str, source: str) -> None:
        self._base = base.rstrip("/")
        self._headers = headers
        self._context = CallContext(
            provider_id=name, secrets=Secrets([token]), key_source=source, address="the address of its API"
        )
        self._transport = Transport()

    async def __aenter__(self) -> "_Api":
        return self

    async def __aexit__(self, kind: object, error: object, _: object) -> None:
        await self._transport.aclose()
        if isinstance(error, KeyError | IndexError | TypeError | ValueError | AttributeError):
            name = self._context.provider_id
            what = f"{self._base} does not answer like {name}'s API"
            raise ProviderResponseError(what, provider_id=name, hint="is a proxy in between?") from error

    async def call(self, method: str, path: str, payload: Mapping[str, str] | None = None) -> Any:
        headers = {"accept": "application/json", "content-type": "application/json", **self._headers}
        body = b"" if payload is None else json_bytes(payload)
        call = HttpCall(f"{self._base}/{path}", headers, body, method, _TIMEOUT_S)
        return decode_json((await self._transport.send(call, self._context)).body)

    async def own_comment(self, path: str, marker: str, is_own: Any) -> Any:
        """Return the first comment under `path` that begins with `marker` and is ours; None if there is none."""
        joint = "&" if "?" in path else "?"
        for page in range(1, _MOST_PAGES + 1):
            found = await self.call("GET", f"{path}{joint}per_page={_PAGE}&page={page}")
            for comment in found:
                if str(comment["body"]).startswith(marker) and is_own(comment):
                    return comment
            if len(found) < _PAGE:
                break
        return None


class GitHub:
    """A pull request on GitHub.

    Args:
        repository: `OWNER/NAME`.
        number: number of the pull request.
        api: URL of the API.
    """

    def __init__(self, repository: str, number: int, token: str, api: str) -> None:
        self._repository, self._number = repository, number
        self._token, self._api = token, api

    @property
    def shown(self) -> str:
        return f"{self._repository}#{self._number}"

    async def post(self, text: str, marker: str) -> str:
        issues = f"repos/{quote(self._repository)}/issues"
        hint = "the job needs `permissions: pull-requests: write`, which pull requests from forks never get:"
        with_hint = f"{hint} comment from a second workflow (docs/ci.md)"
        async with _github_api(self._token, self._api) as api:
            try:
                user = await _github_user(api)
                path = f"{issues}/{self._number}/comments"
                own = await api.own_comment(path, marker, lambda comment: _login(comment["user"]) == user)
                if own is None:
                    made = await api.call("POST", path, {"body": text})
                else:
                    made = await api.call("PATCH", f"{issues}/comments/{int(own['id'])}", {"body": text})
            except (ProviderAuthError, ProviderRequestError) as error:
                is_refused = error.status in _NOT_PERMITTED
                raise UsageError(
                    f"cannot comment on {self.shown}: {error.message}", hint=with_hint if is_refused else ""
                ) from error
            return str(made.get("html_url", ""))


def _login(user: Any) -> str:
    """Return a user's login; "" for a deleted user, which GitHub reports as null."""
    return "" if user is None else str(user["login"])


def _github_api(token: str, api: str) -> _Api:
    headers = {"authorization": f"Bearer {token}", "x-github-api-version": "2022-11-28"}
    return _Api("GitHub", api, headers, token, "GITHUB_TOKEN")


async def _github_user(api: _Api) -> str:
    try:
        return str((await api.call("GET", "user"))["login"])
    except (ProviderAuthError, ProviderRequestError):
        return _ACTIONS_USER


class GitLab:
    """A merge request on GitLab.

    Args:
        project: id or path of the project.
        number: number of the merge request within the project.
        api: URL of the API, ending in `/api/v4`.
    """

    def __init__(self, project: str, number: int, token: str, api: str) -> None:
        self._project, self._number = project, number
        self._token, self._api = token, api

    @property
    def shown(self) -> str:
        return f"{self._project}!{self._number}"

    async def post(self, text: str, marker: str) -> str:
        notes = f"projects/{quote(self._project, safe='')}/merge_requests/{self._number}/notes"
        headers = {"private-token": self._token}
        async with _Api("GitLab", self._api, headers, self._token, "GITLAB_TOKEN") as api:
            try:
                user = (await api.call("GET", "user"))["id"]
                path = f"{notes}?sort=asc"
                own = await api.own_comment(path, marker, lambda note: note["author"]["id"] == user)
                if own is None:
                    await api.call("POST", notes, {"body": text})
                else:
                    await api.call("PUT", f"{notes}/{int(own['id'])}", {"body": text})
            except (ProviderAuthError, ProviderRequestError) as error:
                hint = ""
                if error.status in _NOT_PERMITTED:
                    hint = "GITLAB_TOKEN must be a project or personal access token with the scope `api`"
                raise UsageError(f"cannot comment on {self.shown}: {error.message}", hint=hint) from error
        return ""


async def host_in_ci(environ: Mapping[str, str], number: int | None) -> Host:
    """Return the pull request that CI is running for; `number` overrides the one that CI names.

    For a GitHub workflow that runs after another one (`workflow_run`), the pull request is found by its branch, and
    only
    if its last commit is still the one that was evaluated.

    Raises:
        UsageError: this is not the CI of a pull request, none has the evaluated commit, or a token is missing.
    """
    if environ.get("GITLAB_CI"):
        token = environ.get("GITLAB_TOKEN", "")
        if not token:
            hint = "set it to a project access token with the scope `api`, as a masked variable"
            raise UsageError("GITLAB_TOKEN is not set", hint=hint)
        written = str(number or environ.get("CI_MERGE_REQUEST_IID", ""))
        if not written.isdecimal():
            raise UsageError("this is no pipeline of a merge request", hint=_NOT_IN_CI)
        project = environ.get("CI_PROJECT_ID") or environ.get("CI_PROJECT_PATH", "")
        return GitLab(project, int(written), token, environ.get("CI_API_V4_URL", "https://gitlab.com/api/v4"))
    repository = environ.get("GITHUB_REPOSITORY", "")
    if repository.count("/") != 1:
        hint = "set GITHUB_REPOSITORY to OWNER/NAME and GITHUB_TOKEN, or run it in the CI of a pull request"
        raise UsageError("neither GitHub's nor GitLab's CI is running this", hint=hint)
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN is not set", hint="pass `GITHUB_TOKEN: ${{ github.token }}` in `env`")
    api = environ.get("GITHUB_API_URL", "https://api.github.com")
    if number is None:
        number = await _number_of_event(_event(environ), repository, token, api)
    return GitHub(repository, number, token, api)


def _event(environ: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = json.loads(Path(environ.get("GITHUB_EVENT_PATH", "")).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def _number_of_event(event: Mapping[str, Any], repository: str, token: str, api_url: str) -> int:
    try:
        if "pull_request" in event:
            return int(event["pull_request"]["number"])
        if "workflow_run" not in event:
            raise UsageError("this workflow was not started by a pull request", hint=_NOT_IN_CI)
        earlier = event["workflow_run"]
        if earlier["head_repository"] is None:
            raise UsageError("the fork that was evaluated was deleted", hint=_NOT_IN_CI)
        owner = earlier["head_repository"]["owner"]["login"]
        branch = earlier["head_branch"]
        commit = str(earlier["head_sha"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("GITHUB_EVENT_PATH is not an event of a pull request", hint=_NOT_IN_CI) from error
    path = f"repos/{quote(repository)}/pulls?state=open&per_page={_PAGE}&head={quote(f'{owner}:{branch}', safe='')}"
    async with _github_api(token, api_url) as api:
        pulls = await api.call("GET", path)
    numbers = [int(pull["number"]) for pull in pulls if pull["head"]["sha"] == commit]
    if not numbers:
        what = f"no open pull request ends with the evaluated commit {commit[:12]}"
        raise UsageError(what, hint="it was closed, or has newer commits, whose own run will comment")
    return numbers[0]


def report_link(environ: Mapping[str, str]) -> str:
    """Return the URL of the CI run that did the evaluation; "" outside CI."""
    if environ.get("GITLAB_CI"):
        return environ.get("CI_JOB_URL", "")
    earlier = _event(environ).get("workflow_run")
    if isinstance(earlier, dict) and isinstance(earlier.get("html_url"), str):
        return str(earlier["html_url"])
    parts = [environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")]
    return f"{parts[0]}/{parts[1]}/actions/runs/{parts[2]}" if all(parts) else ""
