#include "launcher/keeper/cgroup_path.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <vector>

namespace ddp::launcher {
namespace {

constexpr std::string_view kPrefix = "ddplaunch.";
/// NAME_MAX is 255; the rest is for prefix and numbers.
constexpr std::size_t kMaxJobId = 160;
constexpr std::string_view kDeleted = " (deleted)";

/// Cuts `text` before the next `mark` and gives the part before it.
std::string_view take(std::string_view& text, char mark) {
  const std::size_t end = std::min(text.find(mark), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    if (take(list, ',') == word) return true;
  }
  return false;
}

/// mountinfo writes space, tab, newline, backslash and '#' as a backslash and three octal digits.
std::string unescaped(std::string_view text) {
  std::string plain;
  const auto digit = [&text](std::size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      plain += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

struct Mount {
  std::string root;   ///< the group that the mount point shows
  std::string point;  ///< where it shows it
};

/// 36 35 98:0 ROOT POINT rw,noatime master:1 - cgroup2 cgroup2 rw,…: any number of optional fields before the
/// dash.
std::optional<Mount> cgroup_mount(std::string_view line, std::string_view controller) {
  for (int skipped = 0; skipped < 3; ++skipped)
    take(line, ' ');
  const std::string_view root = take(line, ' ');
  const std::string_view point = take(line, ' ');
  while (!line.empty() && take(line, ' ') != "-") {
  }
  const std::string_view type = take(line, ' ');
  take(line, ' ');  // the source, which says nothing
  const bool wanted =
      controller.empty() ? type == "cgroup2" : type == "cgroup" && has_word(take(line, ' '), controller);
  if (!wanted || !root.starts_with('/') || !point.starts_with('/')) return std::nullopt;
  return Mount{unescaped(root), unescaped(point)};
}

/// "0::/path" of version 2, "5:cpu,cpuacct:/path" of version 1.
std::optional<std::string_view> own_group(std::string_view self_cgroup, std::string_view controller) {
  while (!self_cgroup.empty()) {
    std::string_view line = take(self_cgroup, '\n');
    const std::string_view number = take(line, ':');
    const std::string_view controllers = take(line, ':');
    const bool wanted =
        controller.empty() ? number == "0" && controllers.empty() : has_word(controllers, controller);
    if (!wanted) continue;
    // "/../x": outside of the namespace whose root the mounts show.
    const bool outside = line == "/.." || line.starts_with("/../");
    if (!line.starts_with('/') || outside || line.ends_with(kDeleted)) return std::nullopt;
    return line;
  }
  return std::nullopt;
}

/// What is left of `group` below `root`: empty or "/…".
std::optional<std::string_view> below(std::string_view group, std::string_view root) {
  if (root == "/") return group == "/" ? "" : group;
  if (!group.starts_with(root)) return std::nullopt;
  group.remove_prefix(root.size());
  if (!group.empty() && !group.starts_with('/')) return std::nullopt;
  return group;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::string find_cgroup(std::string_view mountinfo, std::string_view self_cgroup,
                        std::string_view controller) {
  const auto group = own_group(self_cgroup, controller);
  if (!group) return {};
  std::optional<Mount> best;
  while (!mountinfo.empty()) {
    const auto mount = cgroup_mount(take(mountinfo, '\n'), controller);
    // The first that shows us; a later one at the same place lies over it.
    if (!mount || (best && best->point != mount->point)) continue;
    if (below(*group, mount->root)) {
      best = mount;
    } else {
      best.reset();
    }
  }
  if (!best) return {};
  const std::string_view rest = *below(*group, best->root);
  return best->point == "/" && !rest.empty() ? std::string(rest) : best->point + std::string(rest);
}

std::string cgroup_name(std::string_view job_id, std::uint32_t attempt, std::uint64_t unique) {
  std::string name(kPrefix);
  for (const char c : job_id.substr(0, kMaxJobId)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    name += plain ? c : '_';
  }
  return name + '.' + std::to_string(attempt) + '.' + std::to_string(unique);
}

bool is_cgroup_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  for (int numbers = 0; numbers < 2; ++numbers) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || !is_number(name.substr(dot + 1))) return false;
    name = name.substr(0, dot);
  }
  return !name.empty() && name.find('/') == std::string_view::npos;
}

}  // namespace ddp::launcher
