"""Connections are as those of `socket`: not inherited, blocking where they were accepted, closed when left."""

import os
import socket

from topout.host.light_socket import Socket


def test_who_is_accepted_blocks_and_is_not_inherited():
    with Socket(socket.AF_INET) as listener, Socket(socket.AF_INET) as caller:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        listener.setblocking(False)
        caller.connect(listener.getsockname())
        caller.send(b"hello")
        accepted, address = listener.accept()
        with accepted:
            assert address == caller.getsockname()
            assert os.get_blocking(accepted.fileno())
            assert not any(os.get_inheritable(one.fileno()) for one in (listener, caller, accepted))
            assert accepted.recv(5) == b"hello"
    assert listener.fileno() == caller.fileno() == accepted.fileno() == -1


def test_what_goes_wrong_is_what_callers_catch():
    with Socket(socket.AF_INET) as refused, Socket(socket.AF_INET) as silent:
        silent.bind(("127.0.0.1", 0))
        try:
            refused.connect(silent.getsockname())
        except ConnectionRefusedError as error:
            assert error.strerror
        else:
            raise AssertionError("nobody listens there")
        silent.listen(1)
        silent.setblocking(False)
        try:
            silent.accept()
        except BlockingIOError:
            return
        raise AssertionError("nobody was there")
