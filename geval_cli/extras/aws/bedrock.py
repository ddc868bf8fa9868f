"""`bedrock:...`: Amazon Bedrock by its Converse or OpenAI-compatible API, depending on the id and the credentials."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from geval_cli.errors import MissingKey, Problem
from geval_cli.extras.aws.batches import JobPlace
from geval_cli.extras.aws.converse import WRITTEN_KEYS, ConverseProvider
from geval_cli.extras.aws.signing import (
    BEDROCK,
    CONVERSE,
    SIGNING_KEYS,
    AwsSigner,
    check_keys,
    has_bearer_key,
    missing_credentials,
    region_of,
    speaks_converse,
)
from geval_cli.extras.credentials import check_key_command, key_command_of, missing_program
from geval_cli.patterns import compile_later
from geval_cli.providers import presets
from geval_cli.providers.base import Provider, ProviderSource
from geval_cli.providers.network.addresses import certificate_of, check_certificate
from geval_cli.providers.network.messages import Signer
from geval_cli.providers.options import (
    ENDPOINT_KEYS,
    OtherKeys,
    OwnKey,
    check_settings,
    has_key_command,
    key_command_source,
    limits_of,
    own_settings,
    spelling_in,
    wire_parameters,
)
from geval_cli.providers.preset_table import is_region
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import LIST_PRICE, ListPrice, Price, batch_price_of, price_of
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire import openai
from geval_cli.providers.wire.parameters import check_parameters, parameters_of, places_of
from geval_cli.source.secrets import secret_values


def _is_s3_folder(value: Any) -> bool:
    return isinstance(value, str) and _S3_FOLDER.fullmatch(value) is not None


def _is_role(value: Any) -> bool:
    return isinstance(value, str) and _ROLE.fullmatch(value) is not None


_S3_FOLDER = compile_later(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[\w./-]*)?")
_ROLE = compile_later(r"arn:aws(?:-[^:]+)?:iam::\d{12}:role/[^\s]{1,512}")
_NOT_HERE = (
    "region",
    "batch",
    "batch_deployment",
    "account_id",
    "api_version",
    "organization",
    "cloud_login",
)
BATCH_KEYS = (
    OwnKey(("batch_s3", "batchS3"), "an address such as s3://my-bucket/geval", _is_s3_folder),
    OwnKey(("batch_role_arn", "batchRoleArn"), "the ARN of a role", _is_role),
)
BEDROCK_KEYS = (
    *BATCH_KEYS,
    OwnKey(("batch",), "false", lambda value: value is False),
    OwnKey(("region",), "the name of a region, for example us-east-1", is_region),
    *SIGNING_KEYS,
    *(key for key in ENDPOINT_KEYS if key.spellings[0] not in _NOT_HERE),
)
_SIGNING_NAME = "bedrock"
_KEY_HINT = ", or set AWS_BEARER_TOKEN_BEDROCK to a Bedrock API key"


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the model and the config."""
    if not speaks_converse(source):
        # They must not be sent to a model as parameters.
        misplaced = [name for key in (*SIGNING_KEYS, *BATCH_KEYS) for name in key.spellings]
        found = [name for name in misplaced if source.spec.config.get(name) is not None]
        if found:
            message = f"`{found[0]}` is for Bedrock's Converse API, and `{source.id}` uses the OpenAI-compatible one"
            hint = "write `bedrock:converse:MODEL`, or leave it out and set AWS_BEARER_TOKEN_BEDROCK"
            return [source.key_problem(message, key=found[0], hint=hint)]
        return presets.check(source)
    problems = check_settings(source, BEDROCK_KEYS, OtherKeys.SENT, further=WRITTEN_KEYS)
    problems += check_certificate(source)
    problems += [*check_keys(source), *check_key_command(source), *check_parameters(source, "converse")]
    settings = own_settings(source.spec.config, BEDROCK_KEYS)
    if ("batch_s3" in settings) != ("batch_role_arn" in settings):
        named, other = ("batch_s3", "batch_role_arn")[:: 1 if "batch_s3" in settings else -1]
        key = spelling_in(source.spec.config, named, BATCH_KEYS)
        message = f"`{key}` needs `{other}` beside it: batches need a folder in S3 and a role that may use it"
        problems.append(source.problem(message, key=key))
    elif "batch_s3" in settings and has_bearer_key(source):
        message = "batches need AWS credentials, since their files are in S3; here a Bedrock API key is used"
        hint = "set `profile`, or unset AWS_BEARER_TOKEN_BEDROCK"
        problems.append(
            source.problem(message, key=spelling_in(source.spec.config, "batch_s3", BATCH_KEYS), hint=hint)
        )
    if not _model(source):
        hint = f"write it after the colon, for example `{BEDROCK.example}`"
        problems.append(source.problem(f"`{source.id}` has no model name", hint=hint))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Report what is missing to call the model: region, credentials, or the package that signs requests."""
    if not speaks_converse(source):
        return presets.check_ready(source)
    settings = own_settings(source.spec.config, BEDROCK_KEYS)
    problems = missing_program(source)
    if has_bearer_key(source):
        if _bearer_key(source, settings) is None and not has_key_command(settings):
            variable = settings["api_key_env"]
            found = source.problem(
                f"no key for {source.id}: the environment variable {variable} is not set",
                key=spelling_in(source.spec.config, "api_key_env", BEDROCK_KEYS),
            )
            hint = f"set {variable}"
            problems.append(MissingKey(found.message, found.location, hint, variable=str(variable)))
    else:
        problems += missing_credentials(source, settings, _KEY_HINT)
    region = region_of(source, settings)
    needs_region = not has_bearer_key(source) or not _own_address(source, settings)
    if not region and needs_region and not problems:
        hint = f"set `region` in its config, or the variable {' or '.join(BEDROCK.account_envs)}"
        problems.append(source.problem(f"no `region` for {source.id}", hint=hint))
    elif region and not is_region(region):
        message = f"`{region[:60]}` is not the name of a region"
        problems.append(source.problem(message, hint="set `region` in its config, for example us-east-1"))
    return problems


def build(source: ProviderSource) -> Provider:
    """Return the provider that a checked `source` describes."""
    if not speaks_converse(source):
        return openai.build(source)
    endpoint = converse_endpoint(source)
    return ConverseProvider(endpoint, _job_place(source))


def _job_place(source: ProviderSource) -> JobPlace | None:
    """Return where the batches of a checked `source` run; None without a bucket or without AWS credentials for it."""
    settings = own_settings(source.spec.config, BEDROCK_KEYS)
    if "batch_s3" not in settings or has_bearer_key(source) or settings.get("batch") is False:
        return None
    region = region_of(source, settings)
    bucket, _, folder = settings["batch_s3"].removeprefix("s3://").partition("/")
    domain = f"{quote(region, safe='')}.{_domain(region)}"
    own_s3 = source.env.get("AWS_ENDPOINT_URL_S3", "").rstrip("/")
    if own_s3 or "." in bucket:  # S3's certificate does not cover names with further dots
        s3_url = f"{own_s3 or f'https://s3.{domain}'}/{bucket}"
    else:
        s3_url = f"https://{bucket}.s3.{domain}"
    return JobPlace(
        control_url=source.env.get("AWS_ENDPOINT_URL_BEDROCK", "").rstrip("/") or f"https://bedrock.{domain}",
        s3_url=s3_url,
        bucket=bucket,
        folder=folder.strip("/"),
        role_arn=settings["batch_role_arn"],
        s3_signer=AwsSigner(source, "s3", region, settings),
    )


def converse_endpoint(source: ProviderSource) -> Endpoint:
    """Return the endpoint of a checked `source` that uses the Converse API."""
    settings = own_settings(source.spec.config, BEDROCK_KEYS)
    key = _bearer_key(source, settings)
    own_headers = {str(name).lower(): str(value) for name, value in settings.get("headers", {}).items()}
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **own_headers}
    model = _model(source)
    region = region_of(source, settings)
    base_url = (
        _own_address(source, settings)
        or f"https://bedrock-runtime.{quote(region, safe='')}.{_domain(region)}"
    )
    url = str(
        settings.get("api_endpoint") or f"{base_url.rstrip('/')}/model/{quote(model, safe='')}/converse"
    )
    secrets = Secrets([key, *secret_values([headers, url]), *source.secret_values])
    signer: Signer | None
    if has_bearer_key(source):
        key_source = (
            key_command_source(source.spec.config)
            if has_key_command(settings)
            else _key_name(source, settings)
        )
        signer = key_command_of(source, key_header="authorization", secrets=secrets)
    else:
        key_source = "AWS credentials"
        signer = AwsSigner(source, _SIGNING_NAME, region, settings)
    listed = _price(settings, url, model)
    if isinstance(listed, ListPrice):
        batch_price: Price | None = ListPrice(listed.vendor, listed.model, is_batch=True)
    else:
        batch_price = batch_price_of(settings, url=url, model=model)
    return Endpoint(
        id=source.id,
        label=source.label,
        kind="converse",
        model=model,
        url=url,
        headers=headers,
        key_header="authorization" if key and "authorization" not in own_headers else "",
        secrets=secrets,
        key_source=key_source,
        limits=limits_of(settings),
        wire=parameters_of(source, wire_parameters(source.spec.config, BEDROCK_KEYS), "converse"),
        places=places_of(source),
        place=source.place,
        price=listed,
        batch_price=batch_price,
        certificate=certificate_of(source),
        signer=signer,
    )


def _model(source: ProviderSource) -> str:
    return source.name.removeprefix(CONVERSE)


def _own_address(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    """Return the Bedrock URL set in the config or the environment; empty for Amazon's default."""
    host = settings.get("api_host")
    named = settings.get("api_endpoint") or settings.get("base_url") or (f"https://{host}" if host else "")
    return str(named or source.env.get("AWS_ENDPOINT_URL_BEDROCK_RUNTIME") or "")


def _domain(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _bearer_key(source: ProviderSource, settings: Mapping[str, Any]) -> str | None:
    if not has_bearer_key(source) or has_key_command(settings):
        return None
    if "api_key" in settings:
        return str(settings["api_key"])
    value = source.env.get(_key_name(source, settings))
    return value.strip() if value else None


def _key_name(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    """Return where the key comes from: the name of an environment variable, or a phrase for the config."""
    if "api_key" in settings:
        return "`api_key` in the config"
    return str(settings.get("api_key_env") or next(iter(BEDROCK.key_envs)))


def _price(settings: Mapping[str, Any], url: str, model: str) -> Price | None:
    if settings.get("price") in (None, LIST_PRICE) and (
        settings.get("price") == LIST_PRICE or ".amazonaws.com" in url
    ):
        return ListPrice("aws", model)
    return price_of(settings, url=url, model=model)
