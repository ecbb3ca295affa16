#include "launcher/agent/node_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/keeper/cgroup.h"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

}  // namespace

namespace facts {
namespace {

constexpr std::size_t kMaxSmallFile = 256u << 10;

/// The CPUs that one cgroup allows, rounded up; unset: it has no limit.
std::optional<std::uint32_t> quota_in(const std::string& directory, bool v2) {
  std::optional<std::int64_t> quota;
  std::optional<std::int64_t> period;
  if (v2) {
    const std::string line = first_line(directory + "/cpu.max");
    const std::vector<std::string_view> words = split_at_blanks(line);
    if (words.size() < 2) return std::nullopt;
    quota = leading_number<std::int64_t>(words[0]);  // "max" is not a number
    period = leading_number<std::int64_t>(words[1]);
  } else {
    quota = leading_number<std::int64_t>(first_line(directory + "/cpu.cfs_quota_us"));  // -1: no limit
    period = leading_number<std::int64_t>(first_line(directory + "/cpu.cfs_period_us"));
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::min<std::int64_t>((*quota + *period - 1) / *period, 1 << 20));
}

}  // namespace

std::uint32_t cpu_quota(const std::string& proc, const std::string& root) {
  const std::string mounts = read_start(proc + "/self/mountinfo", kMaxSmallFile, 0);
  const std::string groups = read_start(proc + "/self/cgroup", kMaxSmallFile, 0);
  std::uint32_t tightest = 0;
  for (const bool v2 : {true, false}) {
    std::string group = find_cgroup(mounts, groups, v2 ? "" : "cpu");
    for (; !group.empty(); group.erase(group.rfind('/'))) {
      const auto quota = quota_in(root + group, v2);
      if (quota && (tightest == 0 || *quota < tightest)) tightest = *quota;
    }
  }
  return tightest;
}

std::vector<int> affinity_cpus() {
  // The mask may be larger than cpu_set_t's 1024; the kernel returns EINVAL until the buffer holds it.
  for (std::size_t cpus = 1024; cpus <= 1024 * 64; cpus *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(cpus), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t size = CPU_ALLOC_SIZE(cpus);
    if (sched_getaffinity(0, size, set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> found;
    for (std::size_t cpu = 0; cpu < cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, size, set.get())) found.push_back(static_cast<int>(cpu));
    }
    return found;
  }
  return {0};
}

std::uint32_t physical_cores(const std::vector<int>& cpus, const std::string& root) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string siblings = first_line(root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                            "/topology/thread_siblings_list");
    if (siblings.empty()) return 0;
    cores.insert(siblings);
  }
  return static_cast<std::uint32_t>(cores.size());
}

}  // namespace facts

namespace {

std::uint8_t prefix_length(const sockaddr* mask) {
  if (!mask) return 0;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(mask);
  std::size_t at = offsetof(sockaddr_in, sin_addr);
  std::size_t count = 4;
  if (mask->sa_family == AF_INET6) {
    at = offsetof(sockaddr_in6, sin6_addr);
    count = 16;
  }
  int bits = 0;
  for (std::size_t i = 0; i < count; ++i)
    bits += __builtin_popcount(bytes[at + i]);
  return static_cast<std::uint8_t>(bits);
}

Result<std::vector<rendezvous::Interface>> list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return system_error(errno, "list the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<rendezvous::Interface> found;
  for (const ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const void* address =
        family == AF_INET
            ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr)
            : &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    char text[INET6_ADDRSTRLEN];
    if (!inet_ntop(family, address, text, sizeof text)) continue;
    rendezvous::Interface made;
    made.name = entry->ifa_name;
    made.address = text;
    made.prefix_length = prefix_length(entry->ifa_netmask);
    made.up = (entry->ifa_flags & IFF_UP) && (entry->ifa_flags & IFF_RUNNING);
    made.loopback = entry->ifa_flags & IFF_LOOPBACK;
    found.push_back(std::move(made));
  }
  // A Hello has room for 256 addresses. A host of containers has thousands that connect no nodes.
  std::ranges::stable_partition(
      found, [](const auto& made) { return made.up && !made.address.starts_with("fe80:"); });
  return found;
}

Result<std::string> machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!std::getline(file, boot) || boot.empty())
    return system_error(ENOENT, "read /proc/sys/kernel/random/boot_id");
  // Two containers on one machine share the boot id, but not the loopback.
  struct stat net {};
  if (stat("/proc/self/ns/net", &net) != 0) return system_error(errno, "stat /proc/self/ns/net");
  return boot + ":" + std::to_string(net.st_ino);
}

}  // namespace

Result<NodeFacts> gather_node_facts() {
  NodeFacts made;
  rendezvous::Hello& hello = made.hello;
  hello.machine_id = DDP_TRY(machine_id());
  hello.interfaces = DDP_TRY(list_interfaces());

  utsname system{};
  if (uname(&system) == 0) hello.hostname = system.nodename;
  hello.pid = static_cast<std::uint32_t>(getpid());
  struct stat pids {};
  if (stat("/proc/self/ns/pid", &pids) == 0) hello.pid_namespace = pids.st_ino;

  const std::vector<int> cpus = facts::affinity_cpus();
  const std::uint32_t quota = facts::cpu_quota("/proc", "");
  hello.cpus = std::max<std::uint32_t>(static_cast<std::uint32_t>(cpus.size()), 1);
  if (quota > 0) hello.cpus = std::min(hello.cpus, quota);
  const std::uint32_t cores = facts::physical_cores(cpus, "");
  made.cores = cores > 0 ? std::min(cores, hello.cpus) : hello.cpus;
  hello.gpus = static_cast<std::uint32_t>(visible_gpus(getenv("CUDA_VISIBLE_DEVICES")).size());
  return made;
}

// ---- InfiniBand

namespace {

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
