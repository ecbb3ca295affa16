#include "apps/ddplaunch/local_endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "base/asio.h"
#include "base/files.h"
#include "base/host_name.h"
#include "base/safe_text.h"
#include "launcher/hang/wait_state.h"
#include "remote/start/name_service.h"

namespace ddp {

namespace {

constexpr std::chrono::seconds kNameTime{10};

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the local addresses, as in the kernel's table, that collide with a listener at `address`. Empty:
/// all.
std::vector<std::string> rivals(const std::string& address) {
  std::vector<std::string> all = {"0.0.0.0", "[::]"};
  if (address == "localhost") {
    all.insert(all.end(), {"127.0.0.1", "[::1]"});
    return all;
  }
  error_code ignored;
  const auto one = asio::ip::make_address(address, ignored);
  if (ignored) return {};
  all.push_back(one.is_v4() ? one.to_string() : "[" + one.to_string() + "]");
  return all;
}

bool holds_socket(const fs::path& process, std::uint64_t inode) {
  for (const fs::path& entry : list_directory(process / "fd")) {
    std::error_code gone;
    if (launcher::socket_inode(fs::read_symlink(entry, gone).string()) == inode) return true;
  }
  return false;
}

void find_process(std::uint64_t inode, PortHolder& holder) {
  for (const fs::path& entry : list_directory("/proc")) {
    const std::string name = entry.filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (!holds_socket(entry, inode)) continue;
    holder.pid = static_cast<pid_t>(std::stol(name));
    std::string program = content(entry / "comm");
    program.resize(std::min(program.find('\n'), program.size()));
    holder.program = one_line(program);
    return;
  }
}

std::string user_text(uid_t uid) {
  const std::string number = "uid " + std::to_string(uid);
  const auto user = remote::find_user(uid);
  return user ? "user " + one_line(user->name) + " (" + number + ")" : number;
}

std::vector<asio::ip::address> interface_addresses() {
  std::vector<asio::ip::address> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, ::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      addresses.emplace_back(
          asio::ip::address_v4(ntohl(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr)));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr,
                  bytes.size());
      addresses.emplace_back(asio::ip::address_v6(bytes));
    }
  }
  return addresses;
}

/// Returns the addresses of `host` without scopes; empty if it cannot be resolved.
std::vector<asio::ip::address> addresses_of(const std::string& host) {
  auto found = remote::find_addresses(host, AF_UNSPEC, std::chrono::steady_clock::now() + kNameTime);
  if (!found) return {};
  for (asio::ip::address& address : *found)
    if (address.is_v6()) address = asio::ip::address_v6(address.to_v6().to_bytes());
  return std::move(*found);
}

}  // namespace

bool is_loopback_address(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_own_address(const std::string& host) {
  const std::string name = host_name();
  if (is_loopback_address(host) || (!name.empty() && host == name)) return true;
  const std::vector<asio::ip::address> own = interface_addresses();
  const std::vector<asio::ip::address> addresses = addresses_of(host);
  return std::any_of(addresses.begin(), addresses.end(), [&own](const asio::ip::address& address) {
    return address.is_loopback() || std::find(own.begin(), own.end(), address) != own.end();
  });
}

std::string first_address(const std::string& host) {
  const std::vector<asio::ip::address> addresses = addresses_of(host);
  return addresses.empty() ? "" : addresses.front().to_string();
}

std::optional<PortHolder> find_port_holder(const std::string& address, std::uint16_t port) {
  std::map<std::uint64_t, launcher::TcpSocket> sockets;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"})
    launcher::parse_tcp_table(content(table), sockets);
  const std::vector<std::string> addresses = rivals(address);
  const std::string end = ":" + std::to_string(port);
  std::optional<PortHolder> holder;
  std::uint64_t inode = 0;
  for (const auto& [number, socket] : sockets) {
    const std::string local = socket.local.substr(0, socket.local.rfind(':'));
    const bool in_the_way =
        addresses.empty() || std::find(addresses.begin(), addresses.end(), local) != addresses.end();
    if (socket.state != launcher::kTcpListening || !socket.local.ends_with(end) || !in_the_way) continue;
    if (holder && holder->uid != ::geteuid()) continue;
    holder = PortHolder{socket.uid, 0, {}};
    inode = number;
  }
  if (holder) find_process(inode, *holder);
  return holder;
}

std::string holder_text(const PortHolder& holder) {
  std::string text = "a process";
  if (holder.pid != 0) text = "process " + std::to_string(holder.pid) + " (" + holder.program + ")";
  if (holder.uid != ::geteuid()) text += " of " + user_text(holder.uid);
  return text;
}

}  // namespace ddp
