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

/// Texts of option values to values; nothing when the text is not one.

/// 500ms, 15s, 2m, 1h, or a number of seconds; up to 1000 hours.
std::optional<std::chrono::milliseconds> read_duration(std::string_view text);
/// As read_duration into `value`, which stays when `text` is empty; what is wrong, or less than `least`, goes
/// to `diagnostics` with the option's name.
void read_time(const std::string& text, std::string_view option, std::chrono::milliseconds least,
               std::chrono::milliseconds& value, Diagnostics& diagnostics);
/// N, auto, gpu or cpu. N from 1 to 65535.
std::optional<launcher::ProcsPerNode> read_procs(std::string_view text);
/// LOW-HIGH, both from 1 to 65535, LOW not above HIGH.
std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text);
/// Bytes: 4096, 500K, 64M, 2G, also KiB, MiB, GiB and kB; all of them powers of 1024. Up to 1 PiB.
std::optional<std::uint64_t> read_size(std::string_view text);
/// "0,8-15" or "all": sorted, joined where they touch; nothing for "all".
std::optional<launcher::RankRanges> read_rank_ranges(std::string_view text);
/// torchrun's --tee and --redirects: 0 to 3, or LOCAL_RANK:N,… for some local ranks and 0 for the others.
std::optional<launcher::StreamChoice> read_stream_choice(std::string_view text);
/// Whether it can be a CIDR (10.1.0.0/16, fd00::/8) or the name of a network interface.
bool is_network(std::string_view text);
/// Whether it is an address, or a CIDR.
bool is_address_range(std::string_view text);
/// Whether it can be a job id, which is a directory's name and a part of environment variables: 1 to 64
/// letters, digits,
/// '.', '_' and '-', beginning with a letter or digit.
bool is_job_id(std::string_view text);

/// `path` made absolute against `base`, without "." and a "/" at the end; ".." stays, for it follows links.
std::string absolute_path(std::string_view path, std::string_view base);

}  // namespace ddp
