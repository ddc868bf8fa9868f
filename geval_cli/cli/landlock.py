"""Linux's Landlock: the process gives up rights of its own, and nothing gives them back.

Three system calls and two records, called through ctypes: a sandbox that distrusts code should not add a dependency,
and Python has no binding of its own. Rights that an older kernel does not know are left out one by one; what Landlock
itself cannot tell apart is described in docs/reference/security.md.
"""

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from msgspec import Struct

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_ASK_VERSION = 1
_RULE_PATH, _RULE_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_BY_VERSION = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: 1 << 15}
"""The rights on files that each version of Landlock added."""

_READ = _READ_FILE | _READ_DIR
_FILL = _WRITE_FILE | _TRUNCATE | _REMOVE_FILE | _MAKE_REG
_WRITE = _READ | _FILL | _REMOVE_DIR | _MAKE_DIR | _REFER
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

_BIND, _CONNECT = 1, 2
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_SIGNALS_AND_SOCKETS = 3


class AllowedPaths(Struct, frozen=True):
    """The files that the process may still use: each of these, and everything below them.

    Attributes:
        readable: may be read.
        writable: may be read, written, created and removed.
        filled: descriptors of folders in which files may be created and replaced, but not read.
        emptied: folders from which empty folders may be removed.
    """

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    filled: tuple[int, ...] = ()
    emptied: tuple[Path, ...] = ()


class LandlockError(Exception):
    """The kernel did not restrict the rights."""


def landlock_version() -> int:
    """Return the version of Landlock in the kernel; 0 if there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def restrict_files(allowed: AllowedPaths) -> None:
    """Restrict this thread, and everything that it starts, to opening these files and executing none.

    Raises:
        LandlockError: the kernel refuses.
    """
    version = landlock_version()
    handled = sum(rights for since, rights in _BY_VERSION.items() if since <= version)
    rules: list[tuple[Path | int, int]] = [(path, _WRITE & handled) for path in allowed.writable]
    rules += [(path, _READ & handled) for path in allowed.readable]
    rules += [(path, _FILL & handled) for path in allowed.filled]
    rules += [(path, _REMOVE_DIR & handled) for path in allowed.emptied]
    scopes = _SIGNALS_AND_SOCKETS if version >= _SCOPES_SINCE else 0
    ruleset = _ruleset(_Attributes(handled, 0, scopes), version)
    try:
        for path, rights in rules:
            _allow_path(ruleset, path, rights)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def restrict_ports(ports: Iterable[int]) -> bool:
    """Restrict this thread, and everything that it starts, to connecting to these TCP ports and listening on none.

    Returns whether the kernel can do that.

    Raises:
        LandlockError: the kernel refuses.
    """
    version = landlock_version()
    if version < _NETWORK_SINCE:
        return False
    ruleset = _ruleset(_Attributes(0, _BIND | _CONNECT, 0), version)
    try:
        for port in ports:
            _checked(_call(_ADD_RULE, ruleset, _RULE_PORT, ctypes.byref(_PortRule(_CONNECT, port)), 0))
        _restrict(ruleset)
    finally:
        os.close(ruleset)
    return True


class _Attributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # which `_pack_` implies; Python 3.14 warns where it is not named
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


class _PortRule(ctypes.Structure):
    _fields_ = [("rights", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def _ruleset(attributes: _Attributes, version: int) -> int:
    size = 24 if version >= _SCOPES_SINCE else 16 if version >= _NETWORK_SINCE else 8
    return _checked(_call(_CREATE_RULESET, ctypes.byref(attributes), size, 0))


def _allow_path(ruleset: int, path: Path | int, rights: int) -> None:
    """Allow a path, or what a descriptor refers to; a path that does not exist needs no rule."""
    try:
        descriptor = os.dup(path) if isinstance(path, int) else os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule = _PathRule(rights, descriptor)
        code = _call(_ADD_RULE, ruleset, _RULE_PATH, ctypes.byref(rule), 0)
        if code < 0 and ctypes.get_errno() not in {errno.EBADFD, errno.EINVAL}:  # a pipe needs no rule either
            _checked(code)
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> None:
    if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise LandlockError(os.strerror(ctypes.get_errno()))
    _checked(_call(_RESTRICT_SELF, ruleset, 0))


def _checked(code: int) -> int:
    if code < 0:
        raise LandlockError(os.strerror(ctypes.get_errno()))
    return code


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library. Only called on Linux."""
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    values = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *values))
