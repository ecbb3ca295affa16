"""PyTorch's worker server: HTTP on a Unix socket, on threads of its own."""

import faulthandler
import os
import socket
import tempfile
import threading

handlers = {}


class _Response:
    def __init__(self):
        self.body = b""

    def set_content(self, content, content_type):
        self.body = content.encode() if isinstance(content, str) else content

    def set_status(self, status):
        pass


def _register_handler(name, handler):
    handlers[name] = handler


def _get_handler_names():
    return list(handlers)


def dump_traceback(request, response):
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        response.set_content(file.read(), "text/plain")


_register_handler("dump_traceback", dump_traceback)


def _dump_fr_trace_json(include_collectives, only_active):
    response = _Response()
    handlers["fr_trace_json"](None, response)
    return response.body


class _WorkerServer:
    def __init__(self, path, port=-1):
        if os.path.exists(path):
            raise RuntimeError(path + " already exists")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        os.write(2, b"[W1129 21:24:38.445129034 WorkerServer.cpp:128] [c10d] Server listening to UNIX " + path.encode() + b"\n")
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()

    @staticmethod
    def answer(connection):
        with connection:
            name = connection.recv(4096).split(b" ")[1].decode().removeprefix("/handler/")
            handler = handlers.get(name)
            if handler is None:
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            response = _Response()
            try:
                raw = handler(None, response)
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(response.body)}\r\nContent-Type: text/plain\r\n\r\n"
                connection.sendall(raw if raw is not None else head.encode() + response.body)
            except OSError:
                pass  # the agent has read enough
