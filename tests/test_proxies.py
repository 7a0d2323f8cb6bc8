"""Proxies between the operator and the API server."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

import milvus_operator as mo
from tests.lib.proxies import HttpProxy
from tests.lib.wire import Api, connected, write_kubeconfig
from tests.lib.world import World, milvus

pytestmark = pytest.mark.platform


@pytest.fixture(autouse=True)
def by_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to this machine."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def lists(file: str) -> bool:
    """Whether an operator with this kubeconfig can list everything."""
    world = World()  # it handles what is logged
    connected(file, ["test"], workers=1).run_pass()
    assert "HUNTER2" not in str(world.log)
    return not world.warnings


@pytest.mark.parametrize(
    ("login", "written"),
    [
        ("me:HUNTER2", "http://me:HUNTER2"),
        ("a b:HUNTER2@/:%", "http://a%20b:HUNTER2%40%2F%3A%25"),
        ("me:HUNTER2", "me:HUNTER2"),
    ],
)
def test_a_password_in_the_url_is_sent_to_the_proxy(
    api: Api, tmp_path: Path, login: str, written: str
) -> None:
    api.world.add(milvus("x", replicas=0))
    with closing(api):
        proxy = HttpProxy(api.url, login)
        url = f"{written}@127.0.0.1:{proxy.server_port}"
        file = write_kubeconfig(tmp_path / "a", "http://api.example", proxy_url=url)
        lists(file)  # it can write no status: this proxy only reads
        assert len(proxy.passed) == 4
        wrong = url.replace("HUNTER2", "HUNTER2x")
        assert not lists(write_kubeconfig(tmp_path / "b", "http://api.example", proxy_url=wrong))
        assert len(proxy.passed) == 4
        proxy.shutdown()
        proxy.server_close()


def test_a_module_that_is_missing_is_named_and_the_kubeconfig_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    monkeypatch.delitem(sys.modules, "urllib3.contrib.socks", raising=False)
    file = write_kubeconfig(tmp_path / "a", "http://a", proxy_url="socks5://127.0.0.1:1")
    with (
        pytest.warns(match="SOCKS support"),
        pytest.raises(mo.Unusable, match="a SOCKS proxy-url needs the Python package PySocks"),
    ):
        mo.connect(file, None, 1)
