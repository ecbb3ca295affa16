#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/options/option_table.h"
#include "launcher/job/job_spec.h"

namespace ddp {

inline constexpr unsigned kMaxPort = 65'535;
inline constexpr std::uint16_t kEndpointPort = 29400;  ///< torchrun's default port of an endpoint

/// --nnodes N or MIN:MAX; min and max are equal for N.
struct NodeCounts {
  std::size_t min = 0;
  std::size_t max = 0;
};

/// --rdzv-endpoint HOST, HOST:PORT, [V6] or [V6]:PORT. On a single node torchrun's users write port 0.
struct RendezvousEndpoint {
  std::string text;  ///< as written
  std::string host;
  std::optional<std::uint16_t> port;
};

/// These functions turn texts of options into values, and return nullopt for an invalid text.

/// Words of --nproc-per-node, which stand for a number.
const std::vector<std::pair<std::string, rendezvous::ProcsRule>>& procs_words();
std::optional<NodeCounts> read_node_counts(std::string_view text);
/// Returns "--nnodes N" or "--nnodes MIN:MAX".
std::string nnodes_text(const NodeCounts& counts);
/// Reads LOW-HIGH, both from 1 to 65535, LOW not above HIGH.
std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text);
/// Reads "0,8-15" or "all" into sorted ranges, joined if they touch. "all" gives no range.
std::optional<launcher::RankRanges> read_rank_ranges(std::string_view text);
/// Reads the same into single numbers, up to 65535.
std::optional<std::vector<int>> read_local_ranks(std::string_view text);
/// Reads torchrun's --tee and --redirects: 0 to 3, or LOCAL_RANK:N,… for some local ranks and 0 for the
/// others.
std::optional<launcher::StreamChoice> read_stream_choice(std::string_view text);
/// Returns whether `text` can be a CIDR (10.1.0.0/16, fd00::/8) or the name of a network interface.
bool is_network(std::string_view text);
/// Returns whether `text` is an address or a CIDR.
bool is_address_range(std::string_view text);
/// Returns whether `text` can be a job id, which is the name of a directory and a part of environment
/// variables. A job id has 1 to 64 letters, digits, '.', '_' and '-', and begins with a letter or digit.
bool is_job_id(std::string_view text);
/// Returns whether `text` is a number of GB/s above 0.
bool is_bandwidth(std::string_view text);

/// Returns what is wrong with the name or address of node 0, as a reader does; empty: nothing.
std::string host_problem(std::string_view host);

/// The functions below return readers, whose fields must outlive them.

/// The rule and number of workers: N, from 1 to 65535, or one of procs_words().
ReadValue procs_into(rendezvous::ProcsWanted& field);
/// An endpoint, with its port or without.
ReadValue endpoint_into(std::optional<RendezvousEndpoint>& field);
/// ADDRESS:PORT, an IPv6 address in brackets.
ReadValue listen_into(std::string& address, std::uint16_t& port);
/// A path, made absolute against `base`.
ReadValue path_into(std::string& field, std::string base);
/// The name of a program, searched in PATH, or its path as in path_into().
ReadValue program_into(std::string& field, std::string base);
/// The words of a command, quoted as in sh; at least one.
ReadValue command_into(std::vector<std::string>& field);
/// EVENT=COMMAND of --on, which adds one.
ReadValue hooks_into(std::vector<launcher::Hook>& field);
ReadValue watch_into(std::vector<launcher::WatchRule>& field);
/// SIZE[:PARTS] of --log-max-size.
ReadValue log_limit_into(launcher::OutputOptions& output);

/// Makes `path` absolute against `base`, without "." and a "/" at the end. ".." stays, because it follows
/// links.
std::string absolute_path(std::string_view path, std::string_view base);

}  // namespace ddp
