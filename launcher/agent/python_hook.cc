#include "launcher/agent/python_hook.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace ddp::launcher {
namespace {

/// For every Python: one that is too old must not fail at it, since other programs than the worker (gdb) have
/// an interpreter, too.
constexpr std::string_view kHook =
    R"py(# ddplaunchd writes this file for its Python workers (docs/users/hang.md). --no-diagnosis turns it off.
import os
import sys
try:
    from _thread import get_ident, start_new_thread  # before a library replaces them (gevent)
    MAIN = get_ident()
except ImportError:  # Python 2
    pass


def leave(here):
    """Hides this directory from the script, and from its children."""
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != here]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    return os.environ.pop("DDPLAUNCH_DIAGNOSIS", None)


def describe_groups(request, response):
    """Says which ranks each process group has: the recorder of gloo does not. Runs on a thread of the server."""
    import json
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    names = world.pg_names  # without the groups of which this rank is no member
    groups = dict((names[group], {"description": getattr(group, "group_desc", ""), "ranks": list(ranks)})
                  for group, ranks in list(world.pg_group_ranks.items()) if group in names)
    response.set_content(json.dumps(groups), "application/json")
    response.set_status(200)


def frame_text(code, line):
    """As faulthandler writes it."""
    return '  File "%s", line %d in %s\n' % (code.co_filename[-200:], line or 0, code.co_name[:100])


def stacks():
    """The Python stacks of the other threads in 60,000 bytes, the main thread's at the end."""
    frames, texts, room = sys._current_frames(), [], 60000
    for thread in [MAIN] + sorted(set(frames) - {MAIN, get_ident()}):
        lines, frame = ["Thread 0x%016x (most recent call first):\n" % thread], frames.pop(thread, None)
        while frame is not None and len(lines) <= 100:
            lines.append(frame_text(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        texts.insert(0, "".join(lines).encode("utf-8", "replace"))
        room -= len(texts[0])
        if room < 0:
            texts.pop(0)
            break
    return b"".join(texts)


def serve_stacks(path):
    """Answers requests for the stacks as PyTorch's server does, on a thread that Python does not know (threading)."""
    import _socket  # whose sockets gevent does not replace
    import signal
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.settimeout(None)  # the script may have set a default
    try:
        listener.bind(path)
        listener.listen(8)
    except OSError:  # the script has deleted the directory
        return listener.close()

    def answer():
        while True:
            connection = _socket.socket(fileno=listener._accept()[0])
            try:
                connection.settimeout(1)
                wanted = connection.recv(4096).startswith(b"POST /handler/dump_traceback ")
                body = stacks() if wanted else b""
                connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
                                   % (b"200 OK" if wanted else b"404 Not Found", len(body), body))
            except OSError:
                pass  # the agent has gone
            finally:
                connection.close()

    def run():
        try:
            answer()
        except Exception:
            pass  # the script has closed the listener, for example

    # The thread takes none of the script's signals. It inherits the mask.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        start_new_thread(run, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def keep_end(path):
    """Leaves what the recorder knows if an exception ends the worker, when nobody can ask its server any more."""
    import atexit
    from torch._C import _distributed_c10d as c10d
    pid = os.getpid()

    def write():
        error = getattr(sys, "last_value", None)  # of an exception that nobody has caught
        if error is None or os.getpid() != pid or not hasattr(c10d, "_dump_fr_trace_json"):
            return
        frames, traceback = [], getattr(sys, "last_traceback", None)
        while traceback is not None and len(frames) < 200:
            frames.insert(0, frame_text(traceback.tb_frame.f_code, traceback.tb_lineno))
            traceback = traceback.tb_next
        try:
            with open(path + ".end", "wb") as file:
                file.write(" ".join(str(error).split())[:2000].encode("utf-8", "replace") + b"\n")
                file.write(c10d._dump_fr_trace_json(True, False))
                file.write(b"\n" + "".join(frames).encode("utf-8", "replace"))
        except Exception:
            pass  # it ends anyway

    atexit.register(write)


def serve(path):
    """Starts PyTorch's worker server, or our own where it is missing or knows no stacks (2.4)."""
    import ctypes
    from torch._C import _distributed_c10d as c10d
    try:
        for name in (path + ".end", path):
            if os.path.exists(name):
                os.unlink(name)  # of a Python program that ran before this one in the same worker
    except OSError:
        pass
    if "dump_traceback" not in getattr(c10d, "_get_handler_names", list)():
        return serve_stacks(path)
    # The server announces itself on descriptor 2. Everything else that is written meanwhile is passed on.
    notes, stderr = os.memfd_create("stderr"), os.dup(2)
    try:
        os.dup2(notes, 2)
        try:
            running = c10d._WorkerServer(path)
        finally:
            os.dup2(stderr, 2)
        os.lseek(notes, 0, os.SEEK_SET)
        kept = [line for line in os.read(notes, 65536).splitlines(True) if b"WorkerServer.cpp" not in line]
        if kept:
            os.write(2, b"".join(kept))
    finally:
        os.close(notes)
        os.close(stderr)
    # It is never destroyed: its destructor would wait for a thread that a forked child does not have.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(running))
    c10d._register_handler("ddplaunch_groups", describe_groups)
    keep_end(path)


class Finder(object):
    """Waits for the first import of torch.distributed, and imports nothing itself."""

    def __init__(self, path):
        self.path = path
        self.pid = os.getpid()

    def find_spec(self, name, path=None, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = None
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            try:
                if os.getpid() == self.pid:  # a forked child is no worker
                    serve(self.path)
            except Exception:
                pass  # the job is not less well without it

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec


def start():
    here = os.path.dirname(os.path.abspath(__file__))
    path = leave(here)
    if path and sys.version_info >= (3, 8):
        sys.meta_path.insert(0, Finder(path))
    # The sitecustomize that this one hides: that of the user, of conda or of the distribution.
    try:
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec
    except ImportError:  # Python 2
        return
    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


start()
)py";

}  // namespace

Result<> write_python_hook(const std::string& directory) {
  for (const std::string_view name : kPythonHookFiles) {
    const std::string path = directory + "/" + std::string(name);
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    const std::string_view text = name == kPythonHookFiles.front() ? kHook : std::string_view();
    if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      return system_error(errno, "write " + path);
  }
  return {};
}

}  // namespace ddp::launcher
