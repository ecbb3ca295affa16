#include "remote/start/resolver.h"

#include <cstring>
#include <functional>
#include <utility>

#include "base/format_text.h"
#include "remote/start/name_service.h"

namespace ddp::remote {
namespace {

using Addresses = std::vector<asio::ip::address>;

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
