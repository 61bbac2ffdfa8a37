"""How the helper becomes part of a Ray cluster, or why it does not, in one line."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

NAMESPACE = "modelserver"
# The first with tokens.
_OLDEST = (2, 52)
# Seconds for Ray to answer, and for the process that tries without a token.
_ANSWER_PATIENCE = 15.0
_TRY_PATIENCE = 60.0
_LONGEST = 300
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Without a token, in a process of its own: Ray reads its settings once.
_TRY = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).get_all_node_info(timeout=15)
except AuthenticationError:
    print("closed")
else:
    print("open")
"""


class Unusable(Exception):
    """The cluster cannot be used; the message says why, in one line."""


def join(address: str) -> Any:
    """Makes this process a driver of the cluster at ``HOST:PORT``; returns the module ``ray``.

    Raises Unusable.
    """
    ray = _import_ray()
    _check_token(ray)
    about, nodes = _look_at(ray, address)
    _check_versions(ray, about, address)
    on_loopback = all(map(is_loopback, [address.rpartition(":")[0], *nodes]))
    if not on_loopback:
        _check_protected(address, nodes)
    elif nodes:
        _stay_on_loopback()
    _check_own_node(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (Exception, SystemExit) as error:
        raise Unusable(explained(error, address)) from error
    return ray


def is_loopback(host: str) -> bool:
    """Whether the host is this machine as it calls itself; names that cannot be resolved are not."""
    try:
        addresses = socket.getaddrinfo(host.strip("[]"), None)
    except OSError:
        return False
    return bool(addresses) and all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in addresses)


def demands_token(address: str) -> bool:
    """Whether the cluster refuses a process without a token. Raises Unusable if that cannot be told."""
    hidden = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-c", _TRY, address]
    try:
        tried = subprocess.run(  # noqa: S603 - this Python
            command,
            env={**environment, "RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        state = ""
    else:
        state = tried.stdout.strip()
    if state not in {"open", "closed"}:
        raise Unusable(f"whether the Ray cluster at {address} demands a token cannot be found out")
    return state == "closed"


def explained(error: BaseException, address: str) -> str:
    """An error of joining, in one line."""
    if type(error).__name__ == "AuthenticationError":
        return (
            f"the Ray cluster at {address} demands another token: the server needs RAY_AUTH_MODE=token and "
            "the cluster's token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
        )
    return f"the Ray cluster at {address} cannot be joined: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """The message of an error of Ray, without its pages of hints."""
    text = _COLOURS.sub("", str(error))
    if dead := re.search(r"The actor (is dead because .*|never ran.*)", text, re.DOTALL):
        text = dead[1]
    elif named := re.findall(r"(?m)^\s*((?:\w+\.)*\w*(?:Error|Exception): .*)$", text):
        text = named[-1]
    text = " ".join(text.split())
    return text[:_LONGEST] if text else type(error).__name__


def _import_ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - the reason for this process
    except ImportError as error:
        raise Unusable(
            f"ray_python ({sys.executable}) has no Ray: {error}; pip install 'modelserver[ray]'"
        ) from error
    version = tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2])
    if version < _OLDEST:
        raise Unusable(
            f"ray_python ({sys.executable}) has Ray {ray.__version__}; Ray 2.52 or later is needed"
        )
    return ray


def _check_token(ray: Any) -> None:
    """Ray ends the process if it is to send a token and has none."""
    if not _token_mode():
        return
    try:
        if ray._raylet.AuthenticationTokenLoader.instance().has_token():
            return
        reason = "there is none"
    except Exception as error:  # noqa: BLE001 - as of a file that cannot be read
        reason = one_line(error).partition(". ")[0]
    raise Unusable(
        "RAY_AUTH_MODE=token is set, but no token is found in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or "
        f"~/.ray/auth_token: {reason}"
    )


def _token_mode() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _look_at(ray: Any, address: str) -> tuple[dict[str, str], list[str]]:
    """The versions of the cluster, and the addresses of the nodes that are alive.

    The driver would try for 40 seconds, and then say that it cannot connect.
    """
    try:
        client = ray._raylet.GcsClient(address=address)
        about = client.internal_kv_get(b"CLUSTER_METADATA", namespace=b"cluster", timeout=_ANSWER_PATIENCE)
        nodes: Iterable[Any] = client.get_all_node_info(timeout=_ANSWER_PATIENCE).values()
    except Exception as error:
        raise Unusable(explained(error, address)) from error
    alive = [node for node in nodes if node.state == 0]
    if not alive:
        raise Unusable(f"the Ray cluster at {address} has no nodes")
    return json.loads(about or b"{}"), [str(node.node_manager_address) for node in alive]


def _check_versions(ray: Any, about: dict[str, str], address: str) -> None:
    """Ray's must be equal, and Python's too, if Ray is not told that major and minor are enough."""
    own = ray.__version__, ".".join(map(str, sys.version_info[:3]))
    cluster = about.get("ray_version", own[0]), about.get("python_version", own[1])
    parts = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    if own[0] == cluster[0] and own[1].split(".")[:parts] == cluster[1].split(".")[:parts]:
        return
    raise Unusable(
        f"the Ray cluster at {address} runs Ray {cluster[0]} with Python {cluster[1]}, but ray_python "
        f"({sys.executable}) has Ray {own[0]} with Python {own[1]}"
    )


def _check_protected(address: str, nodes: list[str]) -> None:
    """Whoever reaches an unprotected Ray runs code on its nodes."""
    others = sorted({node for node in nodes if not is_loopback(node)}) or [address]
    advice = "start Ray with RAY_AUTH_MODE=token on every node, and the server too"
    if not _token_mode():
        raise Unusable(
            f"the Ray cluster at {address} is not on loopback ({others[0]}), and RAY_AUTH_MODE=token is not "
            f"set: {advice}"
        )
    if not demands_token(address):
        raise Unusable(
            f"the Ray cluster at {address} is not on loopback ({others[0]}), and takes anyone without a token"
            f": {advice}"
        )


def _stay_on_loopback() -> None:
    """Ray would replace 127.0.0.1 by an address of this machine on which such a cluster does not listen."""
    from ray._private import services  # noqa: PLC0415 - as above

    services.resolve_ip_for_localhost = lambda host: host
    services.get_node_ip_address = lambda _address=None: "127.0.0.1"


def _check_own_node(address: str) -> None:
    """A driver works by way of a node on its machine; without one, Ray would look for it for a long time."""
    from ray._private import services  # noqa: PLC0415 - as above

    find = getattr(services, "find_node_ids", None)
    if find is not None and not find():
        raise Unusable(
            "this machine is no node of the Ray cluster, and the server has to be on one: "
            f"ray start --address={address} --num-cpus=0"
        )
