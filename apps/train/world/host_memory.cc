#include "apps/train/world/host_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "base/format_text.h"
#include "base/host_name.h"

namespace ddp::train {

namespace {

/// Returns the number after `key` at the beginning of a line.
std::optional<std::size_t> number_after(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::size_t number = 0;
    if (std::istringstream(line.substr(key.size())) >> number) return number;
    return std::nullopt;
  }
  return std::nullopt;
}

/// Returns the memory left to one control group; empty if it has no limit.
std::optional<std::size_t> left_to(const std::filesystem::path& group) {
  const auto most = number_after(group / "memory.max", "");  // "max": no number
  if (!most) return std::nullopt;
  const std::size_t taken = number_after(group / "memory.stat", "anon ").value_or(0) +
                            number_after(group / "memory.stat", "shmem ").value_or(0);
  return *most - std::min(*most, taken);
}

/// Returns the path of this process's control group: the line "0::/a/b".
std::filesystem::path own_group(const std::filesystem::path& proc) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

std::optional<std::size_t> available_memory(const std::filesystem::path& proc,
                                            const std::filesystem::path& groups) {
  std::optional<std::size_t> least;
  const auto take = [&least](std::optional<std::size_t> bytes) {
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  };
  if (const auto kib = number_after(proc / "meminfo", "MemAvailable:")) take(*kib << 10);
  std::filesystem::path group = groups;
  take(left_to(group));
  for (const std::filesystem::path& part : own_group(proc)) {
    group /= part;
    take(left_to(group));
  }
  return least;
}

std::string lacking_memory(std::size_t each, int ranks) {
  const auto count = static_cast<std::size_t>(std::max(ranks, 1));
  const auto left = available_memory();
  if (!left || *left / count >= each) return "";
  return format_bytes(each) + " of memory for each rank, and host " + host_name() + " has " +
         format_bytes(*left) + " left for its " + (count == 1 ? "rank" : std::to_string(count) + " ranks");
}

}  // namespace ddp::train
