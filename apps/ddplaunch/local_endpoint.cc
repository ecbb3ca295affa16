#include "apps/ddplaunch/local_endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

namespace ddp {

namespace {

bool same_host(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

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
  std::array<char, 4096> buffer;
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return number;
  return "user " + std::string(found->pw_name) + " (" + number + ")";
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
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, ::freeifaddrs);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (is_loopback(address->ai_addr)) return true;
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (same_host(address->ai_addr, one->ifa_addr)) return true;
    }
  }
  return false;
}

bool resolves(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
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
