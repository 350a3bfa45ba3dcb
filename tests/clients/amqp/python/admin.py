"""The admin interface, as far as these programs need it. Address: ADMIN."""

import json
import os
import urllib.parse
import urllib.request

from kit import PATIENCE_S

ADMIN = os.environ.get("ADMIN", "127.0.0.1:8080")


def ask(path, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{ADMIN}{path}", data=data, method=method)
    if data is not None:
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def queues():
    return {queue["name"]: queue for queue in ask("/api/amqp/queues")}


def set_dispatch(queue, policy):
    """Changes who gets the next message of a queue that Kafka can name too."""
    path = urllib.parse.quote(queue, safe="")
    ask(f"/api/topics/{path}/subscriptions/queue/{policy}", "POST")
