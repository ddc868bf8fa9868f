"""Sign requests with AWS credentials (Signature Version 4), which botocore finds as Amazon's own tools do.

The credentials come from variables, a profile, SSO, a web identity, a container or the machine's role. botocore reads
files and calls servers to get them, so it runs in a thread. Providers with the same settings share one chain.
"""

import asyncio
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from geval_cli.errors import Problem, ProviderAuthError
from geval_cli.patterns import compile_later
from geval_cli.providers.base import TEXT, ProviderSource, kind_of
from geval_cli.providers.network.addresses import parse_address, split_url
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.options import (
    ENDPOINT_KEYS,
    OwnKey,
    has_key_command,
    is_text,
    own_settings,
    spelling_in,
)
from geval_cli.providers.preset_table import PRESETS, is_region
from geval_cli.providers.redaction import learn_secret
from geval_cli.version import install_hint

BEDROCK = PRESETS["bedrock"]
REGION_VARIABLES = BEDROCK.account_envs

PROFILE_KEY = OwnKey(("profile",), "the name of a profile in ~/.aws/config", is_text)
STATIC_KEYS = (
    OwnKey(("access_key_id", "accessKeyId"), "a text", is_text),
    OwnKey(("secret_access_key", "secretAccessKey"), "a text", is_text),
    OwnKey(("session_token", "sessionToken"), "a text", is_text),
)
"""Credentials written in a config itself, as in promptfoo's configs."""
SIGNING_KEYS = (PROFILE_KEY, *STATIC_KEYS)

# Finding no credentials takes a second, the timeout of the machine's metadata server. Each model looks them up, and an
# editor does at every keystroke.
_NONE_FOR_S = 5.0
_FIND_HINT = "run `aws configure` or `aws sso login`, or set AWS_PROFILE"
# Proxies and HTTP clients change these, so they are not part of the signature.
_UNSIGNED = frozenset({"accept", "accept-encoding", "connection", "expect", "user-agent", "x-amzn-trace-id"})
_OF_SIGNATURE = frozenset({"authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256"})
# Not "Signature expired", which says that this machine's clock is wrong.
_TOKEN_REFUSED = compile_later(r"token\b.{0,60}\b(?:expired|invalid)|ExpiredToken|InvalidClientTokenId", re.I)

_CLOCK_IS_WRONG = compile_later(r"signature (?:expired|not yet current)|RequestTimeTooSkewed", re.IGNORECASE)
_ACTION = compile_later(r"not authorized to perform: ([\w:-]+)")
_REFUSED_HINT = "check the AWS credentials: `aws sts get-caller-identity` says whose they are"


def is_installed() -> bool:
    """Return whether botocore, which signs requests, is installed."""
    return find_spec("botocore") is not None


class _Keys(NamedTuple):
    """An access key; `token` is None if the key does not expire."""

    access_key: str
    secret_key: str
    token: str | None


class CredentialChain:
    """The credentials of one profile, looked up once per process; its methods block.

    Args:
        profile: the name of the profile; empty for the one set in the environment, or the default.
        env: the environment of the run, including values from `.env` files and configs.
    """

    def __init__(self, profile: str, env: Mapping[str, str]) -> None:
        self._profile = profile
        self._env = env
        self._lock = threading.Lock()
        self._session: Any = None
        self._found: Any = None
        self._none_until = 0.0

    @property
    def profile(self) -> str:
        """Return the name of the profile in use, for messages; empty for the default."""
        named = (self._env.get(name) for name in ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"))
        return self._profile or next(filter(None, named), "")

    def region(self) -> str:
        """Return the region of the profile; empty if it has none."""
        with self._lock:
            return str(self._opened().get_config_variable("region") or "")

    def keys(self) -> _Keys | None:
        """Return the credentials, renewed if they are about to expire; None if there are none.

        Raises:
            one of `failures`: they cannot be obtained.
        """
        with self._lock:
            return self._keys()

    def renewed(self, refused: str) -> _Keys | None:
        """Return credentials other than the `refused` ones; None if there are no others."""
        with self._lock:
            keys = self._keys()
            if keys is None or _mark(keys) != refused:
                return keys  # another request has renewed them
            self._session = self._found = None
            keys = self._keys()
            return None if keys is None or _mark(keys) == refused else keys

    def _keys(self) -> _Keys | None:
        if self._found is None and time.monotonic() >= self._none_until:
            # A session keeps the files as it first read them: after finding nothing or failing, the next lookup takes a
            # new one.
            session, self._session = self._opened(), None
            self._found = session.get_credentials()
            if self._found is None:
                self._none_until = time.monotonic() + _NONE_FOR_S
            else:
                self._session = session
        if self._found is None:
            return None
        frozen = self._found.get_frozen_credentials()
        keys = _Keys(frozen.access_key, frozen.secret_key, frozen.token)
        _hide(keys)
        return keys

    def _opened(self) -> Any:
        if self._session is None:
            self._session = _session(self._profile, self._env)
        return self._session


_CHAINS: dict[tuple[str, frozenset[tuple[str, str]]], CredentialChain] = {}


def chain_of(profile: str, env: Mapping[str, str]) -> CredentialChain:
    """Return the credential chain for a profile and an environment; the same arguments give the same chain."""
    own = {name: value for name, value in env.items() if name.startswith("AWS_")}
    return _CHAINS.setdefault((profile, frozenset(own.items())), CredentialChain(profile, own))


def _session(profile: str, env: Mapping[str, str]) -> Any:
    """Return a botocore session that reads the run's environment, which may have more than the process's."""
    from botocore.configprovider import ConfigChainFactory  # noqa: PLC0415 - an extra
    from botocore.session import Session  # noqa: PLC0415

    session = Session(profile=profile or None)
    store = session.get_component("config_store")
    chains = ConfigChainFactory(session, environ=env)
    for name, variables, setting, default in (
        ("profile", ["AWS_DEFAULT_PROFILE", "AWS_PROFILE"], None, None),
        ("region", list(REGION_VARIABLES), "region", None),
        ("config_file", "AWS_CONFIG_FILE", None, "~/.aws/config"),
        ("credentials_file", "AWS_SHARED_CREDENTIALS_FILE", None, "~/.aws/credentials"),
    ):
        chain = chains.create_config_chain(
            instance_name=name, env_var_names=variables, config_property_names=setting, default=default
        )
        store.set_config_provider(name, chain)
    for provider in session.get_component("credential_provider").providers:
        if provider.METHOD == "env":
            provider.environ = env
    return session


def _hide(keys: _Keys) -> None:
    learn_secret(keys.secret_key)
    learn_secret(keys.token or "")


def _mark(keys: _Keys) -> str:
    return f"{keys.access_key} {keys.token or ''}"


class AwsSigner:
    """Signs the requests of one provider.

    Args:
        source: the provider, for messages and its environment.
        service: the name of the service in signatures ("bedrock").
        settings: the config's `profile`, or its credentials, if it has any.
    """

    def __init__(
        self, source: ProviderSource, service: str, region: str, settings: Mapping[str, Any]
    ) -> None:
        self._provider_id = source.id
        self._service = service
        self._region = region
        self._written = _written_keys(settings)
        if self._written is not None:
            _hide(self._written)
        self._chain = chain_of(str(settings.get("profile") or ""), source.env)

    def __repr__(self) -> str:
        return f"AwsSigner({self._service!r}, {self._region!r})"

    async def sign(self, call: HttpCall) -> HttpCall:
        """Return `call` with a signature.

        Raises:
            ProviderAuthError: there are no credentials.
        """
        keys = await asyncio.to_thread(self._keys)
        return signed(call, keys, self._service, self._region)

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        """Return the call to send instead of `refused`, signed with renewed credentials.

        Raises:
            ProviderAuthError: `error`, if it is not about expired credentials or there are no others.
        """
        if not _TOKEN_REFUSED.search(f"{error} {error.body}"):
            error.hint = permission_hint(error) or _REFUSED_HINT
            if _CLOCK_IS_WRONG.search(str(error)):
                error.hint = "set this machine's clock: AWS accepts a signature for five minutes"
            raise error
        if self._written is not None:
            error.hint = "the credentials in its config have expired: write new ones, or leave them out"
            raise error
        credential = refused.headers["authorization"].partition("Credential=")[2].partition("/")[0]
        mark = f"{credential} {refused.headers.get('x-amz-security-token', '')}"
        keys = await asyncio.to_thread(self._keys, mark)
        if _mark(keys) == mark:
            login_hint = f"run `aws sso login{_option(self._chain)}`, or renew them where they come from"
            error.hint = f"the AWS credentials have expired: {login_hint}"
            raise error
        return signed(refused, keys, self._service, self._region)

    def _keys(self, refused: str = "") -> _Keys:
        """Return the credentials; with `refused`, different ones if there are any."""
        from botocore.auth import SigV4Auth  # noqa: F401, PLC0415 - an extra; `signed` would import it on the loop

        if self._written is not None:
            return self._written
        try:
            keys = (self._chain.renewed(refused) if refused else None) or self._chain.keys()
        except failures() as error:
            what = f"no AWS credentials for {self._provider_id}: {_said(error)}"
            hint = _fix_hint(self._chain, error)
            raise ProviderAuthError(what, provider_id=self._provider_id, hint=hint) from None
        if keys is None:
            what = f"no AWS credentials for {self._provider_id} were found"
            raise ProviderAuthError(what, provider_id=self._provider_id, hint=_FIND_HINT)
        return keys


def permission_hint(error: ProviderAuthError) -> str:
    """Return the hint for credentials that lack a permission; empty for any other rejection."""
    action = _ACTION.search(str(error))
    return "" if action is None else f"allow `{action[1]}` in the policies of the role or user"


def signed(call: HttpCall, keys: _Keys, service: str, region: str) -> HttpCall:
    """Return `call` with its signature in the headers and its query in the form that the signature requires."""
    from botocore.auth import S3SigV4Auth, SigV4Auth  # noqa: PLC0415 - an extra
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415

    address = parse_address(call.url)
    path, _, query = address.target.partition("?")
    if query:
        # The server normalizes the query before it checks the signature, with one encoding for each character.
        query = "?" + urlencode(parse_qsl(query, keep_blank_values=True), quote_via=quote, safe="-_.~")
    kept = {name.lower(): value for name, value in call.headers.items() if name.lower() not in _OF_SIGNATURE}
    request = AWSRequest(
        method=call.method,
        url=f"{address.origin}{path}{query}",
        headers={name: value for name, value in kept.items() if name not in _UNSIGNED},
        data=call.body,
    )
    auth = S3SigV4Auth if service == "s3" else SigV4Auth
    auth(ReadOnlyCredentials(*keys), service, region).add_auth(request)
    added = {name.lower(): value for name, value in request.headers.items()}
    return replace(call, url=request.url, headers={**kept, **added})


def _written_keys(settings: Mapping[str, Any]) -> _Keys | None:
    names = [key.spellings[0] for key in STATIC_KEYS]
    access, secret, token = (settings.get(name) for name in names)
    return _Keys(access, secret, token) if access and secret else None


def _said(error: Exception) -> str:
    """Return botocore's message, on one line and without a full stop."""
    return " ".join(str(error).split()).rstrip(".")


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions to catch when credentials cannot be obtained.

    They include built-in ones: files and programs that a profile names may be missing, and a program may print
    anything.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra

    return (BotoCoreError, ClientError, OSError, ValueError, LookupError, TypeError)


def _fix_hint(chain: CredentialChain, error: Exception) -> str:
    if "SSO" in type(error).__name__ or "Login" in type(error).__name__:
        return f"run `aws sso login{_option(chain)}`"
    return f"fix them until `aws sts get-caller-identity{_option(chain)}` works"


def _option(chain: CredentialChain) -> str:
    return f" --profile {chain.profile}" if chain.profile else ""


def check_keys(source: ProviderSource) -> list[Problem]:
    """Return the problems with credentials in a config: incomplete, or of two kinds."""
    settings = own_settings(source.spec.config, SIGNING_KEYS)
    written = [key.spellings[0] for key in STATIC_KEYS if key.spellings[0] in settings]
    problems = []
    if written and _written_keys(settings) is None:
        missing = "secret_access_key" if "access_key_id" in settings else "access_key_id"
        key = spelling_in(source.spec.config, written[0], STATIC_KEYS)
        hint = f"add `{missing}`, or leave all of them out to use the machine's own credentials"
        problems.append(source.problem(f"`{key}` needs `{missing}` beside it", key=key, hint=hint))
    if written and "profile" in settings:
        key = spelling_in(source.spec.config, written[0], STATIC_KEYS)
        message = f"`profile` and `{key}` both supply credentials: keep one"
        problems.append(source.problem(message, key="profile"))
    return [*problems, *_header_problems(source)] if uses_signature(source) else problems


def _header_problems(source: ProviderSource) -> list[Problem]:
    """Return a problem for each header in a config that the signature would replace."""
    headers = source.spec.config.get("headers")
    return [
        source.problem(
            f"the header `{name}` is set by the signature",
            key="headers",
            hint="leave it out",
        )
        for name in (headers if isinstance(headers, dict) else ())
        if str(name).lower() in _OF_SIGNATURE
    ]


def missing_credentials(
    source: ProviderSource, settings: Mapping[str, Any], otherwise: str = ""
) -> list[Problem]:
    """Return why requests of a checked `source` cannot be signed on this machine; `otherwise` ends the hint."""
    if not is_installed():
        message = f"requests to {source.id} are signed with AWS credentials, which needs the package botocore"
        return [source.problem(message, hint=f"install it {install_hint('aws')}{otherwise}")]
    if _written_keys(settings) is not None:
        return []
    from botocore.exceptions import ProfileNotFound  # noqa: PLC0415 - an extra

    chain = chain_of(str(settings.get("profile") or ""), source.env)
    key = "profile" if "profile" in source.spec.config else None
    try:
        found = chain.keys()
    except ProfileNotFound:
        message = f"there is no AWS profile `{chain.profile}`"
        hint = "`aws configure list-profiles` lists them"
        return [source.problem(message, key=key, hint=hint)]
    except failures() as error:
        message = f"no AWS credentials for {source.id}: {_said(error)}"
        return [source.problem(message, key=key, hint=_fix_hint(chain, error) + otherwise)]
    if found is None:
        message = f"no AWS credentials for {source.id} were found"
        return [source.problem(message, key=key, hint=_FIND_HINT + otherwise)]
    return []


def region_of(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    """Return a provider's region from the config, the environment or the profile; empty if none of them has one."""
    named = settings.get("region") or next(
        (source.env[name] for name in REGION_VARIABLES if source.env.get(name)), ""
    )
    if named or source.access.is_untrusted or not is_installed():
        return str(named)
    try:
        return chain_of(str(settings.get("profile") or ""), source.env).region()
    except failures():
        return ""  # `missing_credentials` reports the problem with the profile


# Model vendors in Bedrock ids that its OpenAI-compatible API does not serve.
_CONVERSE_ONLY = ("anthropic.", "amazon.", "cohere.", "ai21.", "meta.llama", "writer.", "stability.")
_CHAT_MODES = ("chat:", "responses:", "messages:")
_ADDRESS_KEYS = ("base_url", "api_endpoint", "api_host")
CONVERSE = "converse:"


def speaks_converse(source: ProviderSource) -> bool:
    """Return whether `bedrock:...` uses the Converse API instead of the OpenAI-compatible one.

    The id can say so. Otherwise the model decides, and then the credentials: without a Bedrock API key, requests are
    signed, which geval only does for Converse.
    """
    name = source.name
    if name.startswith(CONVERSE):
        return True
    if name.startswith(_CHAT_MODES) or kind_of(source.spec.id) != TEXT:
        return False
    settings = own_settings(source.spec.config, (*ENDPOINT_KEYS, *SIGNING_KEYS))
    if name.startswith("arn:") or any(maker in name for maker in _CONVERSE_ONLY):
        return True
    if any(key.spellings[0] in settings for key in SIGNING_KEYS):
        return True
    return not has_bearer_key(source) and not any(key in settings for key in _ADDRESS_KEYS)


def has_bearer_key(source: ProviderSource) -> bool:
    """Return whether requests carry a Bedrock API key, which may still be missing, instead of a signature."""
    settings = own_settings(source.spec.config, (*ENDPOINT_KEYS, *SIGNING_KEYS))
    if any(key.spellings[0] in settings for key in SIGNING_KEYS):
        return False
    if has_key_command(source.spec.config) or "api_key" in settings or "api_key_env" in settings:
        return True
    return any(source.env.get(name) for name in BEDROCK.key_envs)


def uses_signature(source: ProviderSource) -> bool:
    """Return whether a provider's requests are signed."""
    if source.kind in ("http", "https"):
        return source.spec.config.get("sign") is not None
    return source.kind == "bedrock" and speaks_converse(source) and not has_bearer_key(source)


def uses_credentials(source: ProviderSource) -> bool:
    """Return whether a provider's requests are signed with this machine's credentials."""
    if not uses_signature(source) or source.kind != "bedrock":
        return uses_signature(source)
    return _written_keys(own_settings(source.spec.config, STATIC_KEYS)) is None


def misused_credentials(source: ProviderSource) -> str:
    """Return which of this machine's AWS credentials a config that may run no code must not use; empty if none.

    A server's configs may call Bedrock with the default credentials at Amazon's own address, just as they may call
    other vendors with the server's keys. Any other signed request could do anything to the account.
    """
    if not uses_credentials(source):
        return ""
    config = source.spec.config
    if not source.access.is_untrusted and source.kind == "bedrock":
        if "profile" in config:
            return "a profile"
        settings = own_settings(config, ENDPOINT_KEYS)
        if not any(key in settings for key in _ADDRESS_KEYS):
            return ""
    return "the AWS credentials"


# Names of services in signatures that differ from the first part of the host name.
_SIGNING_NAMES: Mapping[str, str] = {
    "bedrock-runtime": "bedrock",
    "bedrock-agent": "bedrock",
    "bedrock-agent-runtime": "bedrock",
    "lambda-url": "lambda",
}
_AWS_REGION = compile_later(r"[a-z]{2}(?:-[a-z]+)+-\d")
_AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".on.aws", ".api.aws")


def is_sign(value: Any) -> bool:
    """Return whether `value` is `aws`, or a mapping of `aws` to service, region and credentials."""
    if value == "aws":
        return True
    inner = value.get("aws") if isinstance(value, dict) and len(value) == 1 else None
    known = {"service", "region", "profile", *(name for key in STATIC_KEYS for name in key.spellings)}
    return (
        isinstance(inner, dict)
        and inner.keys() <= known
        and all(is_text(item) for item in inner.values())
        and is_region(inner.get("region", "us-east-1"))
    )


def check_sign(source: ProviderSource) -> list[Problem]:
    """Return the problems with an HTTP provider's `sign`; a value of the wrong form is reported elsewhere."""
    written = source.spec.config.get("sign")
    if written is None or not is_sign(written):
        return []
    settings = _sign_settings(written)
    problems = _header_problems(source)
    if any(key.spellings[0] in settings for key in STATIC_KEYS) and _written_keys(settings) is None:
        message = "credentials in `sign` are `access_key_id` and `secret_access_key`, both"
        problems.append(source.problem(message, key="sign"))
    service, _ = _place_of(source)
    if service or "service" in settings:
        return problems
    hint = "write `sign: {aws: {service: sagemaker}}`, with the service's name"
    return [
        *problems,
        source.problem("`sign: aws` needs a service, which the address does not name", key="sign", hint=hint),
    ]


def missing_for_sign(source: ProviderSource) -> list[Problem]:
    """Return why requests of a checked HTTP provider with `sign` cannot be signed on this machine."""
    written = source.spec.config.get("sign")
    if written is None:
        return []
    settings = _sign_settings(written)
    problems = missing_credentials(source, settings)
    if not problems and not (_place_of(source)[1] or region_of(source, settings)):
        hint = "write `sign: {aws: {region: us-east-1}}`, or set AWS_REGION"
        problems.append(source.problem(f"no `region` for {source.id}", key="sign", hint=hint))
    return problems


def signer_of(source: ProviderSource) -> AwsSigner:
    """Return the signer of a checked HTTP provider with `sign`."""
    settings = _sign_settings(source.spec.config["sign"])
    service, region = _place_of(source)
    region = settings.get("region") or region or region_of(source, settings)
    return AwsSigner(source, settings.get("service") or service, region, settings)


def _sign_settings(written: Any) -> dict[str, Any]:
    inner = written["aws"] if isinstance(written, dict) else {}
    region = {"region": inner["region"]} if "region" in inner else {}
    service = {"service": inner["service"]} if "service" in inner else {}
    return {**own_settings(inner, SIGNING_KEYS), **region, **service}


def _place_of(source: ProviderSource) -> tuple[str, str]:
    """Return the service and the region in an AWS host name; each is empty if the name does not have it."""
    host = (split_url(str(source.spec.config.get("url") or source.spec.id)).hostname or "").lower()
    ending = next((ending for ending in _AWS_HOSTS if host.endswith(ending)), "")
    labels = host.removesuffix(ending).split(".") if ending else []
    region = next((label for label in reversed(labels) if _AWS_REGION.fullmatch(label)), "")
    services = [label for label in labels if label != region]
    if not services:
        return "", region
    service = services[-1].removesuffix("-fips")
    return _SIGNING_NAMES.get(service, service), region
