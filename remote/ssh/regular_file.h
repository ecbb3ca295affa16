#pragma once

#include <optional>
#include <string>

namespace ddp::remote {

/// The content of a file that keys or hosts are read from, at most 16 MiB of it. Empty: it is not there, may
/// not be read, or is a directory, a device or a pipe, which could give bytes for ever or none. Blocking.
std::optional<std::string> read_regular_file(const std::string& path);

}  // namespace ddp::remote
