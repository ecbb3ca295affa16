#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "launcher/job_spec.h"

namespace ddp {

/// Texts of option values to values; nothing when the text is not one.

/// 500ms, 15s, 2m, 1h, or a number of seconds; up to 1000 hours.
std::optional<std::chrono::milliseconds> read_duration(std::string_view text);
/// N, auto, gpu or cpu. N from 1 to 65535.
std::optional<launcher::ProcsPerNode> read_procs(std::string_view text);
/// LOW-HIGH, both from 1 to 65535, LOW not above HIGH.
std::optional<std::pair<std::uint16_t, std::uint16_t>> read_port_range(std::string_view text);
/// Whether it can be a CIDR (10.1.0.0/16, fd00::/8) or the name of a network interface.
bool is_network(std::string_view text);
/// Whether it can be a job id, which is a directory's name and a part of environment variables: 1 to 64
/// letters, digits,
/// '.', '_' and '-', beginning with a letter or digit.
bool is_job_id(std::string_view text);

/// `path` made absolute against `base`, without "." and a "/" at the end; ".." stays, for it follows links.
std::string absolute_path(std::string_view path, std::string_view base);

}  // namespace ddp
