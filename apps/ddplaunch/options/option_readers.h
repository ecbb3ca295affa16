#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/options/diagnostics.h"
#include "launcher/job/job_spec.h"

namespace ddp {

inline constexpr unsigned kMaxLocalRank = 65'535;

/// These functions turn texts of options into values, and return nullopt for an invalid text.

/// Reads 500ms, 15s, 2m, 1h, or a number of seconds; up to 1000 hours.
std::optional<std::chrono::milliseconds> read_duration(std::string_view text);
/// Reads a duration into `value`, which stays if `text` is empty. An invalid text, or one below `least`, goes
/// to `diagnostics` with the option's name.
void read_time(const std::string& text, std::string_view option, std::chrono::milliseconds least,
               std::chrono::milliseconds& value, Diagnostics& diagnostics);
/// Reads N, auto, gpu or cpu. N is from 1 to 65535.
std::optional<launcher::ProcsPerNode> read_procs(std::string_view text);
/// Reads LOW-HIGH, both from 1 to 65535, LOW not above HIGH.
std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text);
/// Reads bytes: 4096, 500K, 64M, 2G, also KiB, MiB, GiB and kB; all units are powers of 1024. Up to 1 PiB.
std::optional<std::uint64_t> read_size(std::string_view text);
/// Reads "0,8-15" or "all" into sorted ranges, joined if they touch. "all" gives no range.
std::optional<launcher::RankRanges> read_rank_ranges(std::string_view text);
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

/// Makes `path` absolute against `base`, without "." and a "/" at the end. ".." stays, because it follows
/// links.
std::string absolute_path(std::string_view path, std::string_view base);

}  // namespace ddp
