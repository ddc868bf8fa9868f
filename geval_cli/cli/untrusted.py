"""Precautions before a command touches an untrusted config: separate state, and rights and keys removed.

The checks of `source.access` decide what is allowed, and explain each refusal. This module is for the case that one of
them has a hole: the kernel refuses files, programs and ports, and keys that are not needed are removed.
"""

import atexit
import os
import ssl
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import getproxies

from msgspec import Struct

from geval_cli.cli.landlock import (
    AllowedPaths,
    LandlockError,
    landlock_version,
    restrict_files,
    restrict_ports,
)
from geval_cli.errors import UsageError
from geval_cli.extras.local.models import models_dir
from geval_cli.providers.trust import port_of
from geval_cli.report.safe_file import LinkedError, distrust_links, opened_place, output_error, real_path
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.stored import is_results_file
from geval_cli.source.secrets import is_secret_name
from geval_cli.store.home import (
    DEFAULT_HOME,
    checkout_of,
    home_folder,
    make_temporary_folder,
    named_home,
    remove_folder,
)

_SYSTEM_FILES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *(
        "/etc/ssl",
        "/etc/pki",
        "/etc/ca-certificates",
        "/usr/share/ca-certificates",
        "/usr/local/share/ca-certificates",
    ),
    *(
        "/etc/resolv.conf",
        "/etc/hosts",
        "/etc/nsswitch.conf",
        "/etc/host.conf",
        "/etc/gai.conf",
        "/etc/services",
    ),
    *("/usr/share/zoneinfo", "/etc/localtime", "/etc/timezone", "/etc/mime.types"),
    *("/sys/devices/system", "/proc/cpuinfo", "/proc/meminfo", "/dev/urandom", "/dev/random"),
)
_DEVICES = ("/dev/null", "/dev/tty")

_HARMLESS = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TZ", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV"),
        *("LANG", "LANGUAGE", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR"),
        *("CI", "GITHUB_ACTIONS", "GITHUB_WORKSPACE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
    }
)
_HARMLESS_BEGINNINGS = ("LC_", "XDG_", "PYTHON", "GEVAL_", "OMP_")
_DNS_PORT = 53

STRICT = "strict"
"""The value of `--untrusted` and GEVAL_UNTRUSTED for a run that the kernel must confine."""


class KernelSandbox(Struct):
    """The kernel's part of `--untrusted`, for one process.

    Attributes:
        is_strict: whether a command is refused if the kernel cannot confine it.
        is_active: whether rights have been removed.
        note: what to print when the run begins.
    """

    is_strict: bool = False
    is_active: bool = False
    note: str = ""

    def state_folder(
        self, home: Path | None, configs: Iterable[Path], environ: Mapping[str, str]
    ) -> Path | None:
        """Return the state folder of a run: never one that came with the config, unless the user names it.

        `home` is the folder that the user named. From this call on, nothing is written through links beside the
        configs.

        Raises:
            UsageError: the folder that the user named is behind a link beside the configs, or contains links.
        """
        configs = tuple(configs)
        distrust_links(config.parent for config in configs)
        if named_home(home, environ) is not None:
            refuse_links_in(home_folder(home, env=environ, cwd=Path.cwd()))
            return home
        usual = home_folder(None, env=environ, cwd=Path.cwd())
        # The folder may also be a planted link, wherever it leads.
        places = {usual.resolve(), usual.parent.resolve() / usual.name}
        folders = [config.resolve().parent for config in configs]
        if not any(
            (place.is_relative_to(checkout_of(folder)) or folder.is_relative_to(place.parent))
            for folder in folders
            for place in places
        ):
            return None
        own = _private_folder(folders)
        what = f"{DEFAULT_HOME} next to the config may have come with it and is not used"
        self.note = f"{what}; state is kept in {own}; use it again with `--home {own}`"
        return own

    def tell(self) -> None:
        """Print the note once."""
        if self.note:
            sys.stderr.write(f"note: {self.note}\n")
            self.note = ""

    def confine(
        self, requests: Sequence[RunRequest], state: Iterable[Path] = (), outputs: Iterable[Path] = ()
    ) -> None:
        """Have the kernel refuse all other files and all programs, before anything of an untrusted config is read.

        Threads that are already running keep their rights, so it must be called before there are any.

        Args:
            requests: the configs to read or run.
            state: geval's own folders; one that does not exist yet cannot be created afterwards.
            outputs: files that the user wants written.

        Raises:
            UsageError: confinement is required, and the kernel cannot do it or the user's own judge needs more;
                or an output's folder does not exist, or is behind a link in the untrusted folder.
        """
        if not any(request.is_untrusted for request in requests) or self.is_active:
            return
        if landlock_version() == 0:
            why_not = "it has no Landlock (added in Linux 5.13)"
        elif any(_has_own_program(request) for request in requests):
            why_not = (
                "the judge that you chose may be a program, which needs more access than an untrusted config"
            )
        elif threading.active_count() > 1:
            why_not = "threads are already running"
        else:
            why_not = ""
        if why_not:
            self._do_without(why_not)
            return
        temporary = make_temporary_folder()
        atexit.register(remove_folder, temporary)
        tempfile.tempdir = str(temporary)
        with ExitStack() as stack:
            allowed = AllowedPaths(
                readable=(*_own_files(), *_named_files(requests)),
                writable=(temporary, *map(Path, _DEVICES), *state),
                # Descriptors of the folders as they are: by the time a rule is made, a name may refer to another one.
                filled=tuple(_opened_folder(path, stack) for path in outputs),
                emptied=(temporary.parent,),
            )
            try:
                restrict_files(allowed)
            except LandlockError as error:
                self._do_without(f"the kernel refuses: {error}")
                return
        self.is_active = True

    def narrow(self, prepared: Sequence[PreparedRun], further: frozenset[int] = frozenset()) -> None:
        """Have the kernel refuse all TCP ports but the providers', and drop unneeded keys, before anything is sent.

        `further` are the ports of servers that the user named beside the config.
        """
        self.tell()
        untrusted = [run for run in prepared if run.request.is_untrusted]
        if not untrusted or len(untrusted) < len(prepared):
            return
        if not any(_has_own_program(run.request) for run in untrusted):
            drop_keys(os.environ, {name for run in untrusted for name in run.suite.env})
        ports = ports_of(untrusted)
        if not self.is_active or ports is None:
            return
        try:
            is_done = restrict_ports(ports | further)
        except LandlockError:
            is_done = False
        if not is_done:
            self._do_without("this kernel cannot restrict ports (added in Linux 6.7)")

    def _do_without(self, why: str) -> None:
        message = f"the kernel does not confine this untrusted run: {why}"
        if self.is_strict:
            hint = (
                "run it on a kernel that can, or use plain --untrusted, which then relies on geval's own "
                "checks"
            )
            raise UsageError(message, hint=hint)
        sys.stderr.write(f"note: {message}; geval's own checks still apply\n")


def _opened_folder(path: Path, stack: ExitStack) -> int:
    try:
        descriptor = stack.enter_context(opened_place(path)).descriptor
    except OSError as error:
        failed = output_error(path, error)
        raise UsageError(failed.message, hint=failed.hint) from error
    assert descriptor is not None
    return descriptor


def refuse_links_in(folder: Path) -> None:
    """Check that no untrusted link leads to a folder of geval's own that the user named, or is in it.

    Raises:
        UsageError: there is such a link.
    """
    try:
        real = real_path(folder)
        for path in real.iterdir() if real.is_dir() else ():
            real_path(path)
    except LinkedError as error:
        raise UsageError(
            f"{folder} is not used: {error.strerror}", hint="remove it, or choose another folder"
        ) from error


def drop_keys(environ: "os._Environ[str]", needed: Iterable[str]) -> None:
    """Remove every environment variable except those in `needed` and harmless ones."""
    kept = set(needed)
    for name in list(environ):
        if name not in kept and not is_harmless(name):
            del environ[name]


def is_harmless(name: str) -> bool:
    """Return whether a variable only affects how programs behave and look, and holds no secret."""
    upper = name.upper()
    is_known = upper in _HARMLESS or upper.startswith(_HARMLESS_BEGINNINGS) or upper.endswith("_PROXY")
    return is_known and not is_secret_name(name)


def ports_of(prepared: Iterable[PreparedRun]) -> frozenset[int] | None:
    """Return the TCP ports of the runs' providers and proxies; None if a local model may use any."""
    ports = {_DNS_PORT}
    for run in prepared:
        if run.ports is None:
            return None
        ports |= run.ports
    ports |= {port for url in getproxies().values() if (port := port_of(url))}
    return frozenset(ports)


def _has_own_program(request: RunRequest) -> bool:
    kind = (request.grader or "").partition(":")[0].lower()
    return kind in {"exec", "python", "javascript", "file"}


def _named_files(requests: Iterable[RunRequest]) -> Iterable[Path]:
    """Yield the folders that the configs may read, the env file and baseline that the user named, and local models."""
    for request in requests:
        yield from request.access.folders or ()
        if request.env_file is not None:
            yield request.env_file
        if request.baseline is not None and is_results_file(request.baseline):
            yield Path(request.baseline)
        yield models_dir(request.environ)


def _own_files() -> Iterable[Path]:
    """Yield the paths of geval, Python, libraries, certificates and the files of the name resolver."""
    yield Path(__file__).parents[1]
    yield from {Path(path) for path in sysconfig.get_paths().values()}
    # The site-packages of the user, of the system below a virtual environment, or named by a .pth file.
    yield from (path for path in map(Path, sys.path) if path.name in {"site-packages", "dist-packages"})
    yield Path(sys.base_prefix) / "lib"
    yield Path(sys.prefix) / "pyvenv.cfg"
    certificates = ssl.get_default_verify_paths()
    named = (certificates.cafile, certificates.capath, os.environ.get("REQUESTS_CA_BUNDLE"))
    yield from (Path(path) for path in (*named, *_SYSTEM_FILES) if path)


def _private_folder(folders: Iterable[Path]) -> Path:
    """Return a private folder of this user, or a temporary one if others could have written to it."""
    from platformdirs import user_state_path

    own = user_state_path("geval").resolve() / "untrusted"
    if not any(own.is_relative_to(folder) for folder in folders):
        with suppress(OSError):
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not hasattr(os, "getuid") or own.stat().st_uid == os.getuid():
                return own
    return Path(tempfile.mkdtemp(prefix="geval-state-"))
