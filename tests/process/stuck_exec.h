#pragma once

/// Becomes `program mode` by an exec that does not end before the server of a file system, a child of this
/// process, is killed. Until then the kernel blocks a reader of this process's /proc/PID/environ, as with a
/// program whose memory is locked on a dead disk. Writes 'r' to descriptor 3 when it is stuck, or 's' if the
/// machine does not allow the mount.
[[noreturn]] void exec_stuck(const char* program, const char* mode);
