#include "apps/train/collectives/nccl/nccl_settings.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "base/files.h"
#include "base/text.h"

namespace ddp::train {

std::vector<NcclVariable> share_gpu_variables(const std::string& identity, bool one_node) {
  std::vector<NcclVariable> variables{
      {"NCCL_HOSTID", identity, true},
      // Ranks that pose as other hosts must not find each other over something that only one host has.
      {"NCCL_P2P_DISABLE", "1", true},
      {"NCCL_SHM_DISABLE", "1", true},
      {"NCCL_NVLS_ENABLE", "0", true},
      {"NCCL_MNNVL_ENABLE", "0", true},
      {"NCCL_NET", "Socket", false},
      {"NCCL_IB_DISABLE", "1", false},
      // Ranks take turns on the GPU: the fewer kernels wait for each other, the better.
      {"NCCL_ALGO", "Ring", false},
      {"NCCL_PROTO", "Simple", false},
      {"NCCL_MAX_NCHANNELS", "1", false},
  };
  if (one_node) variables.push_back({"NCCL_SOCKET_IFNAME", "lo", false});
  return variables;
}

std::vector<NcclVariable> capture_variables(const std::string& file,
                                            const std::function<const char*(const char*)>& get) {
  if (get("NCCL_DEBUG") != nullptr || get("NCCL_DEBUG_FILE") != nullptr) return {};
  return {{"NCCL_DEBUG", "INFO", false},
          {"NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,NET", false},
          {"NCCL_DEBUG_FILE", file, false}};
}

bool sockets_are_wanted(const std::function<const char*(const char*)>& get) {
  const char* network = get("NCCL_NET");
  const char* without = get("NCCL_IB_DISABLE");
  return (network != nullptr && std::string_view(network) == "Socket") ||
         (without != nullptr && std::strcmp(without, "0") != 0 && *without != '\0');
}

std::vector<std::string> active_infiniband(const std::string& root) {
  std::vector<std::string> ports;
  for (const auto& device : list_directory(root)) {
    for (const auto& port : list_directory(device / "ports")) {
      if (first_line(port / "state") != "4: ACTIVE") continue;
      const std::string layer = first_line(port / "link_layer");
      ports.push_back(device.filename().string() + " port " + port.filename().string() +
                      (layer == "InfiniBand" || layer.empty() ? "" : " (" + layer + ")"));
    }
  }
  std::ranges::sort(ports);
  return ports;
}

namespace {

constexpr std::size_t kIdBytes = 128;

}  // namespace

int nccl_roots(int ranks, int per_root) {
  return std::max(1, (ranks + per_root - 1) / per_root);
}

int nccl_root_rank(int root, int roots, int ranks) {
  return root * (ranks / roots) + std::min(root, ranks % roots);
}

std::string nccl_root_key(const std::string& group, int root) {
  return concat("nccl/", group, "/roots/", root);
}

std::string encode_nccl_id(std::string_view id, int version) {
  return std::to_string(version) + ' ' + format_hex(id);
}

Result<std::string> decode_nccl_id(std::string_view text, int version, const std::string& by) {
  const Error broken{ErrorCode::kProtocol, by + " published an invalid NCCL id"};
  const std::size_t blank = std::min(text.find(' '), text.size());
  const auto theirs = parse_number<int>(text.substr(0, blank));
  if (!theirs || blank == text.size()) return broken;
  if (*theirs != version) {
    return usage_error(by, " has NCCL ", nccl_version_text(*theirs), " and this rank has NCCL ",
                       nccl_version_text(version), "; install the same version for all ranks");
  }
  auto id = parse_hex(text.substr(blank + 1));
  if (!id || id->size() != kIdBytes) return broken;
  return std::move(*id);
}

std::string nccl_version_text(int version) {
  const bool old = version < 10'000;  // until 2.8
  const int major = version / (old ? 1'000 : 10'000), rest = version % (old ? 1'000 : 10'000);
  return concat(major, ".", rest / 100, ".", rest % 100);
}

namespace {

/// Returns the text after the first `mark`; nothing if `mark` is not in the line.
std::optional<std::string_view> after(std::string_view line, std::string_view mark) {
  const auto found = line.find(mark);
  if (found == std::string_view::npos) return std::nullopt;
  return line.substr(found + mark.size());
}
std::string_view until(std::string_view text, std::string_view ends) {
  return text.substr(0, text.find_first_of(ends));
}

/// Returns the device names of "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>" or
/// "[0]eth0:10.0.0.1<0>". `address`: an address and no port follows the name's colon.
std::vector<std::string> device_names(std::string_view list, bool address) {
  std::vector<std::string> names;
  list = until(list, ";");
  for (std::size_t open; (open = list.find('[')) != std::string_view::npos;) {
    list.remove_prefix(open + 1);
    const bool numbered = !list.empty() && list[0] >= '0' && list[0] <= '9';
    const auto close = list.find(']');
    if (!numbered || close == std::string_view::npos) continue;
    list.remove_prefix(close + 1);
    const std::string_view name = until(list, address ? ": " : " ");
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

/// Reads "rank 0 nranks 2 total 0.55 (kernels 0.20, alloc 0.10, rest 0.00)".
void read_timings(std::string_view text, NcclLog& log) {
  const auto total = after(text, " total ");
  if (!total) return;
  const auto seconds = leading_number<double>(*total);
  if (!seconds) return;
  log.seconds = *seconds;
  log.phases.clear();
  auto list = after(*total, "(");
  if (!list) return;
  for (std::string_view rest = until(*list, ")"); !rest.empty();) {
    const std::string_view phase = until(rest, ",");
    rest.remove_prefix(std::min(rest.size(), phase.size() + 2));
    const auto space = phase.rfind(' ');
    if (space == std::string_view::npos) continue;
    if (const auto took = leading_number<double>(phase.substr(space + 1)))
      log.phases.emplace_back(phase.substr(0, space), *took);
  }
}

void add_once(std::vector<std::string>& words, std::string_view word) {
  if (!word.empty() && std::ranges::find(words, word) == words.end()) words.emplace_back(word);
}

class LogReader {
 public:
  void take_line(std::string_view line) {
    if (const auto warning = after(line, "NCCL WARN ")) {
      log_.warnings.emplace_back(*warning);
      return;
    }
    // At lower levels, the library's version is a line of its own.
    if (const auto version = after(line, "NCCL version "); version && log_.version.empty())
      log_.version = until(*version, "+ ");
    if (const auto text = after(line, "NCCL INFO ")) take_info(*text);
  }

  NcclLog finish() && {
    if (const auto found = devices_.find(log_.network); found != devices_.end()) log_.devices = found->second;
    return std::move(log_);
  }

 private:
  void take_info(std::string_view text) {
    if (const auto name = after(text, "Using network "); name && log_.network.empty()) log_.network = *name;
    if (const auto plugin = after(text, "Assigned NET plugin "); plugin && log_.network.empty())
      log_.network = plugin->substr(0, plugin->find(" to comm"));
    // NCCL writes "Bootstrap : Using" until 2.22, and "Bootstrap: Using" since.
    for (const char* mark : {"Bootstrap : Using ", "Bootstrap: Using "}) {
      if (const auto name = after(text, mark); name && log_.bootstrap.empty())
        log_.bootstrap = until(name->substr(std::min(name->find_first_not_of(" "), name->size())), ":");
    }
    if (const auto list = after(text, "NET/Socket : Using ")) devices_["Socket"] = device_names(*list, true);
    if (const auto list = after(text, "NET/IB : Using ")) devices_["IB"] = device_names(*list, false);
    if (text.find(" coll channels") != std::string_view::npos)
      log_.channels = leading_number<int>(text).value_or(0);
    // Example: "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0".
    if (text.starts_with("Channel ")) {
      if (const auto transport_text = after(text, " via "))
        add_once(log_.transports, until(*transport_text, "/ "));
    }
    if (text.starts_with("Init timings")) read_timings(text, log_);
  }

  NcclLog log_;
  std::map<std::string, std::vector<std::string>, std::less<>> devices_;
};

bool uses_network(const NcclLog& log) {
  return log.transports.empty() || std::ranges::find(log.transports, "NET") != log.transports.end();
}

}  // namespace

NcclLog read_nccl_log(std::string_view text) {
  LogReader reader;
  while (!text.empty()) {
    const std::string_view line = until(text, "\n");
    reader.take_line(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return std::move(reader).finish();
}

std::vector<std::string> transports_of(const NcclLog& log) {
  std::vector<std::string> transports = log.transports;
  std::erase(transports, "NET");
  if (uses_network(log) && !log.network.empty())
    transports.push_back(log.network + (log.devices.empty() ? "" : " ") + join(log.devices, "+"));
  return transports;
}

std::string nccl_line(const NcclLog& log) {
  std::string line = "NCCL" + (log.version.empty() ? "" : " " + log.version);
  const std::string transports = join(transports_of(log), ", ");
  if (!transports.empty()) line += " over " + transports;
  if (log.channels > 0) line += ", " + counted(log.channels, "channel");
  if (log.seconds < 0) return line;
  std::string phases;
  for (const auto& [name, took] : log.phases) {
    if (took >= log.seconds / 10 && took > 0)
      phases += (phases.empty() ? "" : ", ") + name + " " + format_text("%.2f", took);
  }
  return line + ", started in " + format_text("%.2f", log.seconds) + " s" +
         (phases.empty() ? "" : " (" + phases + ")");
}

std::string sockets_warning(const NcclLog& log, const std::vector<std::string>& infiniband) {
  if (log.network != "Socket" || !uses_network(log) || infiniband.empty()) return "";
  const std::string ports = join(infiniband, ", ");
  return "NCCL uses sockets although InfiniBand is up on this node (" + ports +
         "); check that libibverbs is installed and /dev/infiniband is readable (in a container: passed in, "
         "memlock unlimited); NCCL_NET=IB makes NCCL report why InfiniBand does not work";
}

}  // namespace ddp::train
