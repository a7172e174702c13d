"""This machine's addresses, and whether something listens at another."""

import socket

import pytest

from rft_data.core.network import check_listens, own_address, reachable_host


@pytest.mark.parametrize("listening", ["0.0.0.0", "::"])  # noqa: S104 - the claim is about it
def test_who_listens_everywhere_is_found_at_an_address_of_this_machine(listening: str) -> None:
    found = reachable_host(listening)
    assert found not in ("0.0.0.0", "::", "")  # noqa: S104
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104
        check_listens(found, server.getsockname()[1], 5.0)


@pytest.mark.parametrize("named", ["127.0.0.1", "10.0.0.5", "localhost", "node-1"])
def test_a_host_that_was_named_stays(named: str) -> None:
    assert reachable_host(named) == named


def test_where_nothing_listens_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_listens("127.0.0.1", port, 5.0)
    with pytest.raises(ConnectionRefusedError):
        check_listens("127.0.0.1", port, 5.0)
    assert own_address("127.0.0.1") == "127.0.0.1"
