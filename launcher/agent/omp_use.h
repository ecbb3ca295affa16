#pragma once

#include <string>

namespace ddp::launcher {

/// Returns the first line of the script at `path` if it names a Python ("#!/usr/bin/env python3"); else "".
/// Reads 256 bytes of the file, so it may block.
std::string python_line(const std::string& path);

/// Returns whether OMP_NUM_THREADS matters to the program at `path`: it is Python, a script of Python, or its
/// ELF file needs an OpenMP run time (libgomp, libiomp5, libomp) itself. Reads a few KiB of the file, so it
/// may block. A file that cannot be read, or is no 64-bit ELF file of this machine's byte order, gives false.
bool uses_omp_threads(const std::string& path);

}  // namespace ddp::launcher
