// getent in a child process, with a deadline; users; addresses; and the Resolver, which calls this off the
// loop.
#include "remote/start/resolver.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/blocking_calls.h"
#include "base/child_process.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::remote {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::vector<asio::ip::address>;

constexpr std::chrono::seconds kUserTime{5};
constexpr std::chrono::seconds kKept{30};
constexpr std::size_t kMostAnswer = std::size_t{1} << 20;
/// getent's exit code for a key that is not in the database.
constexpr int kNotFound = 2;

Result<std::string> find_getent() {
  const char* path = std::getenv("PATH");
  auto found = find_program("getent", path != nullptr ? path : "");
  // PATH may be unset or lack the system's directories.
  return found ? found : find_program("getent", "/usr/bin:/bin");
}

/// Returns what `getent DATABASE KEY` prints. Errors: kExec with ENOENT, there is no getent; kUnreachable, no
/// such key; kTimeout; kSystem.
Result<std::string> run_getent(const std::string& database, const std::string& key,
                               Clock::time_point deadline) {
  auto program = DDP_TRY(find_getent());
  ChildSpec spec;
  spec.path = program;
  spec.argv = {"getent", database, key};
  spec.env = own_environment();
  const ToolOutput answer = wait_for_tool(std::move(spec), deadline, kMostAnswer);
  if (answer.cut)
    return Error{ErrorCode::kSystem, "the answer of getent for " + key + " is longer than 1 MiB", 0};
  if (answer.success()) return answer.text;
  if (answer.status && *answer.status == ExitStatus::exited(kNotFound))
    return Error{ErrorCode::kUnreachable, "Name or service not known", 0};
  if (answer.status) return Error{ErrorCode::kSystem, "getent " + answer.status->text(), 0};
  if (answer.status.error().code == ErrorCode::kTimeout)
    return Error{ErrorCode::kTimeout, "the name service did not answer in time", 0};
  return answer.status.error();
}

/// The fields of a line of the user database: name, password, uid, gid, comment, home, shell.
std::optional<User> user_of_line(const std::string& line, const std::string& uid) {
  std::array<std::string, 6> fields;
  std::istringstream words(line);
  for (std::string& field : fields)
    if (!std::getline(words, field, ':')) return std::nullopt;
  if (fields[2] != uid) return std::nullopt;
  return User{fields[0], fields[5]};
}

std::optional<User> user_in(std::istream& lines, const std::string& uid) {
  for (std::string line; std::getline(lines, line);)
    if (auto user = user_of_line(line, uid)) return user;
  return std::nullopt;
}

/// Returns the address of a numeric `host` without asking anybody ("10.0.0.1", "fe80::1%eth0"). `family` is
/// AF_UNSPEC, AF_INET or AF_INET6.
std::optional<asio::ip::address> numeric_address(const std::string& host, int family) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  const bool fits = family == AF_UNSPEC || address.is_v4() == (family == AF_INET);
  return error || !fits ? std::nullopt : std::optional(address);
}

void add_address(const std::string& word, int family, Addresses& addresses) {
  const auto address = numeric_address(word, family);
  // getent gives "::ffff:10.0.0.7" for a host without an IPv6 address.
  if (address && address->is_v6() && address->to_v6().is_v4_mapped()) return;
  if (address && std::find(addresses.begin(), addresses.end(), *address) == addresses.end())
    addresses.push_back(*address);
}

/// Returns what /etc/hosts says about `host`. Lower and upper case are the same.
Addresses addresses_in_hosts_file(const std::string& host, int family) {
  Addresses addresses;
  std::ifstream file("/etc/hosts");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    words >> address;
    for (std::string name; words >> name;)
      if (lower_case(name) == lower_case(host)) add_address(address, family, addresses);
  }
  return addresses;
}

Result<Addresses> ask(const std::string& host, int family, Clock::time_point deadline) {
  const char* database = family == AF_INET ? "ahostsv4" : family == AF_INET6 ? "ahostsv6" : "ahosts";
  Addresses addresses;
  auto answer = run_getent(database, host, deadline);
  if (answer) {
    std::istringstream lines(*answer);
    for (std::string line; std::getline(lines, line);)
      add_address(line.substr(0, line.find_first_of(" \t")), family, addresses);
  } else if (answer.error().code == ErrorCode::kExec) {
    addresses = addresses_in_hosts_file(host, family);
    if (addresses.empty())
      return Error{ErrorCode::kUnreachable,
                   "it is not in /etc/hosts, and there is no getent to ask the name service", 0};
  } else {
    return answer.error();
  }
  if (addresses.empty()) return Error{ErrorCode::kUnreachable, "the name has no address of this family", 0};
  return addresses;
}

}  // namespace

std::optional<User> find_user(uid_t uid) {
  const std::string number = std::to_string(uid);
  std::ifstream file("/etc/passwd");
  // Without a child process for most users; getent asks LDAP and SSSD as well.
  if (auto user = user_in(file, number)) return user;
  const auto answer = run_getent("passwd", number, Clock::now() + kUserTime);
  if (!answer) return std::nullopt;
  std::istringstream lines(*answer);
  return user_in(lines, number);
}

Result<Addresses> find_addresses(const std::string& host, int family, Clock::time_point deadline) {
  struct Kept {
    Addresses addresses;
    Clock::time_point until;
  };
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, Kept> kept;

  if (const auto numeric = numeric_address(host, family)) return Addresses{*numeric};
  // getent would take it for an option.
  if (host.empty() || host.front() == '-') return Error{ErrorCode::kUnreachable, "this is no host name", 0};
  {
    const std::lock_guard lock(mutex);
    const auto found = kept.find({host, family});
    if (found != kept.end() && Clock::now() < found->second.until) return found->second.addresses;
  }
  auto addresses = ask(host, family, deadline);
  if (addresses) {
    const std::lock_guard lock(mutex);
    // Successes only: a name that is unknown now may have been added when a lost host is called again.
    kept[{host, family}] = {*addresses, Clock::now() + kKept};
  }
  return addresses;
}

namespace {

constexpr int kMostThreads = 16;

Endpoint endpoint_of(const asio::ip::address& address, std::uint16_t port) {
  const asio::ip::tcp::endpoint socket_address(address, port);
  Endpoint endpoint;
  std::memcpy(&endpoint.address, socket_address.data(), socket_address.size());
  endpoint.size = static_cast<socklen_t>(socket_address.size());
  endpoint.host = address.to_string();
  endpoint.text = format_endpoint(endpoint.host, port);
  return endpoint;
}

}  // namespace

Resolver::Resolver(asio::any_io_executor loop, std::string advice)
    : calls_(std::move(loop), kMostThreads), advice_(std::move(advice)) {}

Awaitable<Result<std::vector<Endpoint>>> Resolver::resolve(std::string name, std::uint16_t port, int family,
                                                           std::chrono::steady_clock::time_point deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  std::vector<Endpoint> endpoints;
  if (const auto numeric = numeric_address(name, family)) {
    endpoints.push_back(endpoint_of(*numeric, port));
    co_return endpoints;
  }
  std::function<Result<Addresses>()> call = [name, family, deadline] {
    return find_addresses(name, family, deadline);
  };
  const auto found = co_await calls_.run(std::move(call), deadline);
  if (!found && found.error().code == ErrorCode::kTimeout)
    co_return Error{ErrorCode::kTimeout,
                    "no answer of the name service for " + name + " before the start limit", 0};
  if (!found && found.error().code == ErrorCode::kCancelled) co_return found.error();
  if (!found)
    co_return Error{ErrorCode::kUnreachable,
                    "cannot resolve " + name + ": " + found.error().text + "; check the name, or " + advice_,
                    0};
  for (const asio::ip::address& address : *found)
    endpoints.push_back(endpoint_of(address, port));
  co_return endpoints;
}

}  // namespace ddp::remote
