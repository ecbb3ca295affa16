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
            code = traceback.tb_frame.f_code
            frames.insert(0, '  File "%s", line %d in %s\n' % (code.co_filename, traceback.tb_lineno, code.co_name))
            traceback = traceback.tb_next
        try:
            with open(path + ".end", "wb") as file:
                file.write(" ".join(str(error).split())[:2000].encode("utf-8", "replace") + b"\n")
                file.write(c10d._dump_fr_trace_json(True, False))
                file.write(b"\n" + "".join(frames).encode("utf-8", "replace"))  # as faulthandler writes them
        except Exception:
            pass  # it ends anyway

    atexit.register(write)


def serve(path):
    """Starts PyTorch's worker server. PyTorch before 2.3 has none."""
    import ctypes
    from torch._C import _distributed_c10d as c10d
    server = c10d._WorkerServer
    try:
        for name in (path + ".end", path):
            if os.path.exists(name):
                os.unlink(name)  # of a Python program that ran before this one in the same worker
    except OSError:
        pass
    # The server announces itself on descriptor 2. Everything else that is written meanwhile is passed on.
    notes, stderr = os.memfd_create("stderr"), os.dup(2)
    try:
        os.dup2(notes, 2)
        try:
            running = server(path)
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
