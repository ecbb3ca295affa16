#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/diagnostic.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// Reads the text of a hostfile (grammar: docs/users/hostfile.md): one entry per line, ranges expanded, order
/// kept. `file` is the name in messages and locations. A byte order mark and CR LF are accepted. The error
/// holds all errors of the file in its order. A file without a host is an error.
Validated<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file);

/// Reads the same grammar with commas for line ends: "a:4,b:4,c[1-3]:2". Locations carry `option` ("--host")
/// and a column, but no line.
Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option);

}  // namespace ddp::remote
