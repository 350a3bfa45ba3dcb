"""NSQ's HTTP interface: publishers with a connection for each message, by urllib and by curl, a scraper
that publishes nothing, and a publisher that keeps its connection."""

import http.client
import os
import platform
import shutil
import subprocess
import urllib.request

import kit

ADDRESS = os.environ["CLOVERLEAF_NSQD_HTTP"]
BASE = f"http://{ADDRESS}"


@kit.behaviour
def urllib_each():
    python = ".".join(platform.python_version_tuple()[:2])
    kit.say("Python-urllib", python)
    while not kit.is_over():
        with urllib.request.urlopen(BASE + "/pub?topic=urllib", kit.BODY) as answer:
            assert answer.read() == b"OK"


@kit.behaviour
def curl_each():
    if shutil.which("curl") is None:
        raise SystemExit("curl is missing: install it")
    version = subprocess.run(["curl", "--version"], check=True, capture_output=True, text=True)
    kit.say("curl", version.stdout.split()[1])
    while not kit.is_over():
        call = ["curl", "-sS", "--fail", "-o", os.devnull, "--data-binary", kit.BODY.decode()]
        subprocess.run([*call, BASE + "/pub?topic=curl"], check=True)


@kit.behaviour
def scraper():
    """Asks for statistics all the time, with a connection each, and publishes nothing."""
    kit.say("Prometheus", "2.53.0")
    while not kit.is_over():
        for path in ["/stats?format=json", "/ping"]:
            headers = {"User-Agent": "Prometheus/2.53.0"}
            with urllib.request.urlopen(urllib.request.Request(BASE + path, headers=headers)) as it:
                it.read()


@kit.behaviour
def good():
    """Many messages at a time on one connection, and now and then one on another."""
    kit.say("good", "1.0")

    def post(connection, path, body):
        connection.request("POST", path + "?topic=good-http", body, {"User-Agent": "good/1.0"})
        assert connection.getresponse().read() == b"OK"

    connection = http.client.HTTPConnection(ADDRESS)
    for number, _ in enumerate(kit.every(0.1)):
        post(connection, "/mpub", b"\n".join([kit.BODY] * 20))
        if number % 5 == 0:
            one = http.client.HTTPConnection(ADDRESS)
            post(one, "/pub", kit.BODY)
            one.close()


kit.main()
