#include "launcher/agent/infiniband.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/files.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

constexpr char kClass[] = "/sys/class/infiniband";
constexpr char kDevices[] = "/dev/infiniband";
constexpr char kLibrary[] = "libibverbs.so.1";

std::vector<fs::path> entries(const fs::path& directory) {
  std::vector<fs::path> found = list_directory(directory);
  std::sort(found.begin(), found.end());
  return found;
}

bool is_active(const fs::path& port) {
  return first_line(port / "state").find("ACTIVE") != std::string::npos;
}

bool is_active_infiniband(const fs::path& port) {
  return is_active(port) && first_line(port / "link_layer") == "InfiniBand";
}

std::vector<std::string> adapters_with(bool (*fits)(const fs::path& port), const std::string& root) {
  std::vector<std::string> found;
  for (const fs::path& adapter : entries(root + kClass)) {
    const std::vector<fs::path> ports = entries(adapter / "ports");
    if (std::any_of(ports.begin(), ports.end(), fits)) found.push_back(adapter.filename());
  }
  return found;
}

/// Parses the list like NCCL: "^" excludes, "=" compares whole names instead of prefixes, ":1" is a port.
bool admits(std::string_view list, const std::string& adapter) {
  bool exclude = false;
  bool exact = false;
  if (!list.empty() && list.front() == '^') exclude = true, list.remove_prefix(1);
  if (!list.empty() && list.front() == '=') exact = true, list.remove_prefix(1);
  bool listed = false;
  std::istringstream words{std::string(list)};
  for (std::string word; std::getline(words, word, ',');) {
    word = word.substr(0, word.find(':'));
    listed = listed || (exact ? adapter == word : adapter.starts_with(word));
  }
  return listed != exclude;
}

bool library_there(const EnvVars& env, const std::string& root) {
  std::vector<std::string> directories{"/lib64", "/usr/lib64", "/lib", "/usr/lib"};
  if (const std::string* path = find_env(env, "LD_LIBRARY_PATH")) {
    std::istringstream list(*path);
    for (std::string directory; std::getline(list, directory, ':');)
      directories.push_back(directory);
  }
  for (const std::string& directory : directories) {
    std::error_code failed;
    if (fs::exists(fs::path(root + directory) / kLibrary, failed)) return true;
  }
  // The loader's cache holds the names of libraries in all other directories.
  std::ifstream cache(root + "/etc/ld.so.cache", std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(cache)), {});
  return content.find(kLibrary) != std::string::npos;
}

/// Returns why this process cannot use the InfiniBand devices; empty if it can.
std::string device_trouble(const std::string& root) {
  for (const fs::path& device : entries(root + kDevices)) {
    if (!device.filename().string().starts_with("uverbs")) continue;
    if (::access(device.c_str(), R_OK | W_OK) == 0) return "";
    return "this user may not open " + std::string(kDevices) + "/" + device.filename().string();
  }
  return "there is no " + std::string(kDevices) + "/uverbs*; in a container, pass these devices to it";
}

}  // namespace

std::vector<std::string> active_infiniband(const std::string& root) {
  return adapters_with(is_active_infiniband, root);
}

std::vector<std::string> active_rdma(const std::string& root) {
  return adapters_with(is_active, root);
}

std::string infiniband_trouble(const std::vector<std::string>& adapters, const EnvVars& env,
                               const EnvVars& asked, const std::string& root) {
  if (adapters.empty()) return "";
  const auto forwarded = [&](const char* name) {
    return find_env(asked, name) ? nullptr : find_env(env, name);
  };
  if (find_env(asked, "NCCL_IB_DISABLE") || find_env(asked, "NCCL_NET")) return "";
  const std::string* off = forwarded("NCCL_IB_DISABLE");
  if (off != nullptr && std::strtol(off->c_str(), nullptr, 0) != 0) return "NCCL_IB_DISABLE is set";
  const std::string* net = forwarded("NCCL_NET");
  if (net != nullptr && *net == "Socket") return "NCCL_NET asks for sockets";
  const std::string* list = find_env(env, "NCCL_IB_HCA");
  if (list != nullptr && !list->empty() &&
      std::none_of(adapters.begin(), adapters.end(),
                   [&](const std::string& it) { return admits(*list, it); }))
    return "NCCL_IB_HCA leaves out every active adapter";
  if (std::string trouble = device_trouble(root); !trouble.empty()) return trouble;
  if (!library_there(env, root)) return std::string(kLibrary) + " is not installed";
  return "";
}

}  // namespace ddp::launcher
