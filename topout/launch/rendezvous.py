"""Where the launchers of a job meet: the token they share, the port made from the job's number, listening, connecting.

Tasks that a scheduler started know their job's number and the head's host, nothing else; so both sides derive the same
few ports and the same token. Not where the ranks meet: their port is chosen and tried by `meeting_point`.
"""

# paths are texts here: `pathlib` takes longer to load than the handshake takes
# ruff: noqa: PTH103, PTH108, PTH120

from __future__ import annotations

import _socket
import os
import time
import zlib

from topout.host.light_socket import Socket
from topout.host.nics import choose_interface, own_addresses, read_nics
from topout.launch.token_proof import hmac_sha256, new_nonce
from topout.launch.variables import config_home, is_this_host
from topout.launch.wire import NotOursError, RefusedError, Wire
from topout.schema.errors import ExitCode, TopoutError
from topout.schema.ignoring import ignoring
from topout.schema.light_dataclass import replace
from topout.schema.spec import RunSpec
from topout.schema.world import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TOKEN_VARIABLE = "TOPOUT_TOKEN"
HEAD_VARIABLE = "TOPOUT_HEAD"
INTERFACE_VARIABLE = "TOPOUT_INTERFACE"
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000
"""Below the kernel's own range for outgoing connections (32768 and up)."""
_CANDIDATES = 8
_STRIDE = 1_009
_CONNECT_S = 2.0
_AT_ONCE_S = 0.001
"""Within which a head speaks that waits for others."""
_FIRST_RETRY_S = 0.002
_RETRY_GROWTH = 1.25
_LONGEST_RETRY_S = 0.2
_TRIES_AT_FIRST_PORT = 4
"""Tasks start together, so the head is there in a moment, or will be long in coming."""
_UNKNOWN_NAME_S = 10.0
"""A name service may be late for a moment when a thousand nodes ask; longer than this it does not know the name."""
_LATE_NAME_S = 2.0
"""Where the answer only helps to choose."""


def new_token() -> str:
    return new_nonce()


def job_token(job_id: str, environ: Mapping[str, str]) -> str:
    """The same on every host of the job, and known to nobody but its user."""
    given = environ.get(TOKEN_VARIABLE)
    return given or hmac_sha256(_user_key(environ), job_id.encode())


def _user_key(environ: Mapping[str, str]) -> bytes:
    """A random key in the user's home folder, which the hosts of a cluster share."""
    path = _key_path(environ)
    if path.startswith("~"):
        raise _no_key(path, "this user has no home folder")
    try:
        with ignoring(FileNotFoundError):
            return _checked_key(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        own = f"{os.path.dirname(path)}/.key.{_socket.gethostname()}.{os.getpid()}"
        fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, os.urandom(32))
            os.fsync(fd)
            # of all hosts that come here at once, one makes the key
            with ignoring(FileExistsError):
                os.link(own, path)
        finally:
            os.close(fd)
            os.unlink(own)
        return _checked_key(path)
    except OSError as error:
        raise _no_key(path, error.strerror or str(error)) from error


def _key_path(environ: Mapping[str, str]) -> str:
    """Begins with a tilde where there is no home folder."""
    return f"{config_home(environ) or '~/.config'}/topout/key"


def _no_key(path: str, why: str) -> TopoutError:
    return TopoutError(
        f"The key of this user's jobs, {path}, cannot be read or made.",
        why=why,
        do=f"export {TOKEN_VARIABLE}=$(openssl rand -hex 16) in the job script, before the tasks are started",
        exit_code=ExitCode.ENVIRONMENT,
    )


def _checked_key(path: str) -> bytes:
    with open(path, "rb") as file:
        key = file.read()
        mode = os.fstat(file.fileno()).st_mode
    if mode & 0o077 or len(key) < 16:
        raise OSError(f"it must be a file of 16 bytes or more that only its owner can read; try: rm {path}")
    return key


def job_ports(job_id: str) -> list[int]:
    """Where this job's head listens: the first of these that is free."""
    start = zlib.crc32(job_id.encode())
    return [_FIRST_PORT + (start + number * _STRIDE) % _NUM_PORTS for number in range(_CANDIDATES)]


def listen(address: str, ports: Sequence[int] = (0,)) -> Socket:
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    for port in ports:
        listener = Socket(family, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            refused = error
            continue
        listener.setblocking(False)
        return listener
    raise TopoutError(
        f"No port to lead this job from is free at {address}.",
        why=f"tried {', '.join(map(str, ports))}: {refused.strerror or refused}",
        do="end what listens there, or start the job again: another job number gives other ports",
        exit_code=ExitCode.ENVIRONMENT,
    )


def is_own(address: str) -> bool:
    """Whether the address belongs to this host: only then can it be bound."""
    with Socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def resolve(name: str, patience_s: float = _UNKNOWN_NAME_S) -> list[str]:
    """Addresses of a host, IPv4 first. Waits a moment for a name service that is late."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            # in bytes: for a text Python loads its tables of letters beyond ASCII, which takes longer than to connect
            found = {str(entry[4][0]) for entry in _socket.getaddrinfo(name.encode(), None, type=_socket.SOCK_STREAM)}
            return sorted(found, key=lambda address: (":" in address, address))
        except OSError as error:
            if time.monotonic() >= give_up_at:
                raise TopoutError(
                    f"The host name {name} does not resolve on {_socket.gethostname()}.",
                    why=f"{error.strerror or error}; the scheduler names this host as the job's first",
                    do=f"export {HEAD_VARIABLE}=ADDRESS of that host, or add it to /etc/hosts or the name service",
                    exit_code=ExitCode.ENVIRONMENT,
                ) from error
        time.sleep(0.5)


def connect(
    addresses: Sequence[str],
    ports: Sequence[int],
    token: str,
    *,
    timeout_s: float,
    to_wait: str = "--start-timeout 120",
    hint: str = "",
    meanwhile: Callable[[], bool] = lambda: False,
    check: Callable[[], None] = lambda: None,
) -> Wire:
    """The job's head, tried at all places until it is there. Another job's head at one of the ports is passed over.

    `to_wait` is how whoever asks may wait for longer, `hint` what else may help. `meanwhile` does a little of something
    else while the head is not there or does not answer yet, and returns False when all is done; `check` is called after
    every try, and may raise.
    """
    give_up_at = time.monotonic() + timeout_s
    retry_s = _FIRST_RETRY_S
    last: Exception | None = None
    refusing: str | None = None
    num_tries = 0
    while time.monotonic() < give_up_at:
        # the head nearly always has the first port; a thousand tasks should not knock at all of them every time
        tried = ports if num_tries % _TRIES_AT_FIRST_PORT == 0 else ports[:1]
        num_tries += 1
        for address, port in [(address, port) for address in addresses for port in tried]:
            # where nobody answers, each of them takes seconds
            if time.monotonic() >= give_up_at:
                break
            try:
                return connect_once(address, port, token, meanwhile)
            except (OSError, NotOursError) as error:
                last = error
                if isinstance(error, RefusedError):
                    refusing = f"{address}:{port}"
            before = time.monotonic()
            check()
            # stopped by Ctrl-Z it could not try
            give_up_at += time.monotonic() - before
        if not meanwhile():
            time.sleep(retry_s)
        retry_s = min(_RETRY_GROWTH * retry_s, _LONGEST_RETRY_S)
    where = " and ".join(addresses)
    if refusing is not None:
        is_told = TOKEN_VARIABLE in os.environ
        different = f"{TOKEN_VARIABLE} has another value" if is_told else f"{_key_path(os.environ)} is another file"
        raise TopoutError(
            f"{_socket.gethostname()} was refused where the head of its job should be.",
            why=f"a topout at {refusing} knows another token: {different} there, or it is another job's",
            do=f"give all tasks the same {TOKEN_VARIABLE} (hosts that do not share the home folder need it); else see "
            "whether the first host started",
            exit_code=ExitCode.ENVIRONMENT,
        )
    raise TopoutError(
        f"{_socket.gethostname()} cannot reach the head of its job at {where}.",
        why=f"tried ports {', '.join(map(str, ports))} for {timeout_s:g} s; the last answer was: {last}",
        do=f"see whether the first host started; if it is slow, {to_wait}; "
        f"if it has another address for jobs, export {HEAD_VARIABLE}=ADDRESS{hint and f'; {hint}'}",
        exit_code=ExitCode.ENVIRONMENT,
    )


def connect_once(address: str, port: int, token: str, meanwhile: Callable[[], bool] = lambda: False) -> Wire:
    """At an address in digits, as `resolve` gives it. `meanwhile` is called until the other end speaks."""
    connection = Socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET)
    try:
        connection.settimeout(_CONNECT_S)
        connection.connect((address, port))
        wire = Wire(connection)
        patience_s = _AT_ONCE_S
        while not wire.has_word(patience_s) and meanwhile():
            patience_s = 0.0
        wire.prove_as_agent(token)
    except BaseException:
        connection.close()
        raise
    return wire


def route_address(hosts: Sequence[str], interface: str | None, *, is_told: bool = False) -> str:
    """The address of this host on the way to the job's others; `is_told`: who look for it are told the address."""
    others = [host for host in hosts if not is_this_host(host)]
    peers: list[str] = []
    if others and interface is None:
        try:
            peers = resolve(others[0], patience_s=_LATE_NAME_S if is_told else _UNKNOWN_NAME_S)
        except TopoutError:
            # else they look where names lead them, which must be found out here as well
            if not is_told:
                raise
    return choose_interface(read_nics(), peers, interface)[0]


def own_interface(hosts: Sequence[str], interface: str | None) -> str | None:
    """A batch or login host that only starts the others need not have the interface over which those talk."""
    is_one_of_them = any(is_this_host(host) for host in hosts)
    return interface if is_one_of_them or interface in own_addresses() else None


def check_interface(spec: RunSpec, *, is_on_one_host: bool) -> None:
    """Before anybody is waited for. One host needs none: there a misspelt flag is told, and a file is the cluster's."""
    name = spec.interface
    if name is None:
        return
    is_misspelt = spec.origins.get("interface") == "command line" and name not in own_addresses()
    if is_misspelt or not is_on_one_host:
        choose_interface(read_nics(), [], name)


def at_data_address(host: Host, peer: str, interface: str | None) -> Host:
    """The host at the address and interface over which its ranks shall talk to others."""
    address, name = choose_interface(host.nics, [peer], interface)
    return replace(host, address=address, interface=name, rails=_rails(host, peer, name) if interface is None else ())


def _rails(host: Host, peer: str, name: str) -> tuple[str, ...]:
    speeds = [nic.speed_bits_per_s for nic in host.nics if nic.addresses]
    own = next((nic.speed_bits_per_s for nic in host.nics if nic.name == name), None)
    if own is None or speeds.count(own) < 2:
        return ()
    # on few hosts, and it loads Python's `socket`
    from topout.host.rails import find_rails

    return find_rails(host.nics, peer, name)
