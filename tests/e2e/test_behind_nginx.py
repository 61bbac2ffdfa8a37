"""A proxy before two servers: requests whose body nobody reads are answered, and take no server out."""

import contextlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from tests.e2e.raw import connect
from tests.e2e.serving import Home, Server, free_port, serving, wait_until

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
pytestmark = [
    pytest.mark.slow,  # starts two servers and a proxy
    pytest.mark.skipif(NGINX is None, reason="nginx is missing: apt-get install nginx-light"),
]

BODY = b"n" * 6_400_000
UPLOADS, PREDICTIONS = 4, 50
UNREAD = {"/nonesuch": 404, "/livez": 405, "/docs": 405}
CONFIG = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_max_body_size 10m;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream servers {{
        server 127.0.0.1:{first} max_fails=1;
        server 127.0.0.1:{second} max_fails=1;
        keepalive 8;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://servers; {how} }}
    }}
}}
"""
WAYS = {
    "by default": "",
    "without buffers": 'proxy_request_buffering off; proxy_http_version 1.1; proxy_set_header Connection "";',
}


@contextlib.contextmanager
def nginx(folder, servers, how):
    """The address of an nginx before these two servers."""
    first, second = (server.port for server in servers)
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, first=first, second=second, port=port, how=how))
    command = [str(NGINX), "-e", str(folder / "error.log"), "-p", str(folder), "-c", str(config)]
    with subprocess.Popen(command) as process:
        try:
            wait_until(lambda: is_open(port), "nginx listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def is_open(port):
    with contextlib.suppress(OSError), connect(port):
        return True
    return False


@pytest.fixture(scope="module")
def servers(tmp_path_factory, model_store):
    """One in a process, the other with front ends."""
    with contextlib.ExitStack() as stack:
        made = []
        for processes in (1, 2):
            home, settings = Home(tmp_path_factory.mktemp("behind")), {"frontend_processes": processes}
            server = stack.enter_context(serving(Server(home, model_store, settings=settings)))
            made.append(server.registered("echo.mar"))
        yield made


@pytest.mark.parametrize("how", WAYS)
def test_large_uploads_to_unknown_paths_are_refused(tmp_path, servers, how):
    """Large bodies for paths that do not read them get 404 or 405 through nginx. Predictions beside them are
    answered, although nginx takes out a server that fails once.
    """
    folder = tmp_path / "nginx"
    folder.mkdir()
    with (
        nginx(folder, servers, WAYS[how]) as address,
        httpx.Client(base_url=address, trust_env=False, timeout=60) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        # Each on a connection of its own: nginx may close one whose body it has not read.
        upload = partial(httpx.post, content=BODY, trust_env=False, timeout=60)
        uploads = [
            (code, pool.submit(upload, address + path))
            for path, code in UNREAD.items()
            for _ in range(UPLOADS)
        ]
        with ThreadPoolExecutor(4) as others:
            marks = [b"%d" % number for number in range(PREDICTIONS)]
            answers = list(others.map(lambda mark: client.post("/predictions/echo", content=mark), marks))
        codes = [(code, answer.result().status_code) for code, answer in uploads]

    assert [answer.status_code for answer in answers] == [200] * PREDICTIONS
    assert [answer.content for answer in answers] == marks
    assert all(expected == code for expected, code in codes), codes
