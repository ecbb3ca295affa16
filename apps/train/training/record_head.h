#pragma once

#include <string>
#include <string_view>

namespace ddp::train {

/// How every record of --metrics-file and --json begins: the schema (docs/train.md), what kind it is, the
/// time, this host, the rank that writes and the number of ranks. An open JSON object: "{…" without its end.
std::string record_head(std::string_view kind, int rank, int world_size);

/// Of this machine; empty: it has none.
std::string host_name();

/// Of plain text as a JSON string, with its quotation marks; what is not printable ASCII is "?".
std::string json_string(std::string_view text);

}  // namespace ddp::train
