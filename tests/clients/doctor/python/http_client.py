"""NSQ's HTTP interface: a connection for each message, by urllib and by curl, somebody who only looks,
and somebody who keeps the connection."""

import http.client
import os
import platform
import shutil
import subprocess
import urllib.request

import kit

HOST, PORT = kit.address("CLOVERLEAF_NSQD_HTTP")
BASE = f"http://{HOST}:{PORT}"
BODY = b"v" * 200


@kit.behaviour
def urllib_each():
    python = ".".join(platform.python_version_tuple()[:2])
    kit.say("Python-urllib", python)
    time = kit.Time()
    while not time.is_over():
        with urllib.request.urlopen(BASE + "/pub?topic=urllib", BODY) as answer:
            assert answer.read() == b"OK"


@kit.behaviour
def curl_each():
    if shutil.which("curl") is None:
        raise SystemExit("curl is missing: install it")
    version = subprocess.run(["curl", "--version"], check=True, capture_output=True, text=True)
    kit.say("curl", version.stdout.split()[1])
    time = kit.Time()
    while not time.is_over():
        call = ["curl", "-sS", "--fail", "-o", os.devnull, "--data-binary", BODY.decode()]
        subprocess.run([*call, BASE + "/pub?topic=curl"], check=True)


@kit.behaviour
def scraper():
    """Looks all the time, with a connection each, and publishes nothing."""
    kit.say("Prometheus", "2.53.0")
    time = kit.Time()
    while not time.is_over():
        for path in ["/stats?format=json", "/ping"]:
            headers = {"User-Agent": "Prometheus/2.53.0"}
            with urllib.request.urlopen(urllib.request.Request(BASE + path, headers=headers)) as it:
                it.read()


@kit.behaviour
def good():
    """Many messages at a time on one connection, and now and then one on another."""
    kit.say("good", "1.0")
    time, headers = kit.Time(), {"User-Agent": "good/1.0"}
    connection = http.client.HTTPConnection(HOST, PORT)
    for number, _ in enumerate(time.every(0.1)):
        connection.request("POST", "/mpub?topic=good-http", b"\n".join([BODY] * 20), headers)
        assert connection.getresponse().read() == b"OK"
        if number % 5 == 0:
            one = http.client.HTTPConnection(HOST, PORT)
            one.request("POST", "/pub?topic=good-http", BODY, headers)
            assert one.getresponse().read() == b"OK"
            one.close()


kit.main()
