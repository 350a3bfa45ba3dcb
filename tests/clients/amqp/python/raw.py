"""AMQP 0-9-1 by hand: frames as bytes, for what no client library would send."""

import socket
import struct

from kit import PATIENCE_S, address

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT_HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)


def short(text):
    data = text.encode() if isinstance(text, str) else text
    return bytes([len(data)]) + data


def long(data):
    return struct.pack(">I", len(data)) + data


def frame(kind, channel, payload, end=b"\xce"):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method(channel, class_id, method_id, arguments=b""):
    return frame(METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)


def content_header(channel, size, properties=b"\x00\x00", class_id=60):
    return frame(CONTENT_HEADER, channel, struct.pack(">HHQ", class_id, 0, size) + properties)


def start_ok(user="guest", password="guest", mechanism="PLAIN"):
    answer = b"\x00" + user.encode() + b"\x00" + password.encode()
    return method(0, 10, 11, long(b"") + short(mechanism) + long(answer) + short("en_US"))


def tune_ok(channels=2047, frame_bytes=131072, heartbeat_s=0):
    return method(0, 10, 31, struct.pack(">HIH", channels, frame_bytes, heartbeat_s))


def open_vhost(vhost="/"):
    return method(0, 10, 40, short(vhost) + b"\x00\x00")


def channel_open(number=1):
    return method(number, 20, 10, b"\x00")


def queue_declare(channel, title, bits=0, arguments=b""):
    return method(channel, 50, 10, b"\x00\x00" + short(title) + bytes([bits]) + long(arguments))


def basic_publish(channel, exchange, key, bits=0):
    return method(channel, 60, 40, b"\x00\x00" + short(exchange) + short(key) + bytes([bits]))


def basic_consume(channel, title, tag, bits=2):
    return method(channel, 60, 20,
                  b"\x00\x00" + short(title) + short(tag) + bytes([bits]) + long(b""))


def message(channel, key, body, exchange="", frame_bytes=131072):
    pieces = [basic_publish(channel, exchange, key), content_header(channel, len(body))]
    for start in range(0, len(body), frame_bytes - 8):
        pieces.append(frame(BODY, channel, body[start:start + frame_bytes - 8]))
    return b"".join(pieces)


class Wire:
    """A connection of bytes. What the broker says is read frame by frame."""

    def __init__(self, opened=True, channels=1, **tuned):
        self.stream = socket.create_connection(address(), 20)
        self.stream.settimeout(PATIENCE_S)
        self.read = b""
        self.taken = 0
        if opened:
            self.send(HEADER)
            self.expect((10, 10))
            self.send(start_ok())
            self.expect((10, 30))
            self.send(tune_ok(**tuned), open_vhost())
            self.expect((10, 41))
            for number in range(1, channels + 1):
                self.send(channel_open(number))
                self.expect((20, 11))

    def send(self, *pieces):
        """Sends them, unless the broker closes before."""
        try:
            for piece in pieces:
                self.stream.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def take(self, size):
        while len(self.read) - self.taken < size:
            try:
                piece = self.stream.recv(1 << 16)
            except ConnectionResetError:
                piece = b""
            except TimeoutError:
                raise AssertionError("the broker neither answers nor closes")
            if not piece:
                return None
            self.read, self.taken = self.read[self.taken:] + piece, 0
        start, self.taken = self.taken, self.taken + size
        return self.read[start:self.taken]

    def skip(self, size):
        """Reads so many bytes and forgets them."""
        size -= len(self.read) - self.taken
        assert size >= 0, f"{-size} bytes more were read before"
        self.read, self.taken = b"", 0
        room = bytearray(1 << 20)
        while size > 0:
            read = self.stream.recv_into(room, min(size, len(room)))
            assert read > 0, "the broker has closed"
            size -= read

    def frame(self):
        """Kind, channel and payload of the next frame; None when the broker has closed."""
        head = self.take(7)
        if head is None:
            return None
        kind, channel, size = struct.unpack(">BHI", head)
        payload = self.take(size + 1)
        return payload and (kind, channel, payload[:-1])

    def method(self):
        """Channel, ids and arguments of the next method; None when the broker has closed."""
        while True:
            found = self.frame()
            if found is None:
                return None
            kind, channel, payload = found
            if kind == METHOD:
                return channel, struct.unpack(">HH", payload[:4]), payload[4:]

    def expect(self, ids):
        found = self.method()
        assert found is not None, f"the broker has closed where {ids} was due"
        assert found[1] == ids, f"{found} where {ids} was due"
        return found[2]

    def refusal(self):
        """Which close comes, its code and its text: ("connection" or "channel", 404, "NOT…");
        ("closed", 0, "") when the broker goes without a word."""
        while True:
            found = self.method()
            if found is None:
                return "closed", 0, ""
            if found[1] in (CONNECTION_CLOSE, CHANNEL_CLOSE):
                kind = "connection" if found[1] == CONNECTION_CLOSE else "channel"
                code, size = struct.unpack(">HB", found[2][:3])
                return kind, code, found[2][3:3 + size].decode(errors="replace")

    def close_ok(self):
        """After a connection.close: the client ends the socket, and the broker follows."""
        self.send(method(0, 10, 51))
        try:
            self.stream.shutdown(socket.SHUT_WR)
        except OSError:
            # Of a peer that has sent far too much the broker reads no further.
            pass
        self.is_closed()

    def is_closed(self):
        """Reads until the broker closes."""
        while self.frame() is not None:
            pass
        self.stream.close()

    def close(self):
        self.stream.close()
