#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/diagnostic.h"
#include "remote/hosts/host.h"

namespace ddp::remote {

/// Reads the text of a hostfile (docs/hostfile.md has the grammar): one entry a line, ranges expanded, order
/// kept. `file` is the name that messages and places carry. A byte order mark and CR LF are tolerated.
/// Errors: all mistakes of the file at once, in its order; a file without a host is one.
Validated<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file);

/// The same grammar with commas for line ends: "a:4,b:4,c[1-3]:2". Places carry `option` ("--host") and a
/// column, no line.
Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option);

}  // namespace ddp::remote
