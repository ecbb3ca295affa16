#include "remote/start/resolver.h"

#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/format_text.h"

namespace ddp::remote {
namespace {

constexpr int kMostThreads = 16;

struct Resolution {
  int error = 0;  ///< result of getaddrinfo
  std::vector<Endpoint> endpoints;
};

Resolution look_up(const std::string& name, std::uint16_t port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Resolution found;
  found.error = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (found.error != 0) return found;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.address, one->ai_addr, one->ai_addrlen);
    endpoint.size = one->ai_addrlen;
    std::array<char, NI_MAXHOST> host{};
    ::getnameinfo(one->ai_addr, one->ai_addrlen, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
    endpoint.host = host.data();
    endpoint.text = format_endpoint(endpoint.host, port);
    found.endpoints.push_back(std::move(endpoint));
  }
  ::freeaddrinfo(list);
  return found;
}

Error resolve_error(const std::string& name, int error, const std::string& advice) {
  return {ErrorCode::kUnreachable,
          "cannot resolve " + name + ": " + ::gai_strerror(error) + "; check the name, or " + advice, 0};
}

}  // namespace

Resolver::Resolver(asio::any_io_executor loop, std::string advice)
    : calls_(std::move(loop), kMostThreads), advice_(std::move(advice)) {}

Awaitable<Result<std::vector<Endpoint>>> Resolver::resolve(std::string name, std::uint16_t port, int family,
                                                           std::chrono::steady_clock::time_point deadline) {
  co_await asio::this_coro::throw_if_cancelled(false);
  Resolution numeric = look_up(name, port, family, AI_NUMERICHOST);
  if (numeric.error == 0) co_return std::move(numeric.endpoints);

  std::function<Result<Resolution>()> call = [name, port, family] {
    return look_up(name, port, family, AI_ADDRCONFIG);
  };
  auto found = co_await calls_.run(std::move(call), deadline);
  if (!found && found.error().code == ErrorCode::kTimeout)
    co_return Error{ErrorCode::kTimeout,
                    "no answer of the name service for " + name + " before the start limit", 0};
  if (!found) co_return found.error();
  if (found->error != 0) co_return resolve_error(name, found->error, advice_);
  co_return std::move(found->endpoints);
}

}  // namespace ddp::remote
