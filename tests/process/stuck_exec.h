#pragma once

/// Becomes `program mode` by an exec that does not end before the server of a file system, a child of ours,
/// is killed: until then a reader of our /proc/PID/environ is held by the kernel, as it is by a program whose
/// memory is locked on a dead disk. Writes 'r' to descriptor 3 when it stands still; 's' where the machine
/// does not let us mount.
[[noreturn]] void exec_stuck(const char* program, const char* mode);
