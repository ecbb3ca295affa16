#include "rendezvous/store_tcp/store_port.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "base/text.h"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kMaxRemembered = 4096;  // addresses that were refused

std::array<std::uint8_t, 16> mapped_bytes(const asio::ip::address& address) {
  if (address.is_v6()) return address.to_v6().to_bytes();
  return asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4()).to_bytes();
}

bool same_prefix(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b,
                 unsigned bits) {
  const unsigned whole = bits / 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  const unsigned rest = bits % 8;
  return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

/// Removes the zone, which names an interface of another machine and may not exist here.
std::string without_zone(std::string_view address) {
  const bool v6 = address.find(':') != std::string_view::npos;
  return std::string(address.substr(0, v6 ? address.find('%') : address.size()));
}

}  // namespace

void AddressFilter::allow(const asio::ip::address& address) {
  addresses_.insert(mapped_bytes(address));
}

Result<> AddressFilter::allow_network(std::string_view text) {
  const auto wrong = [text] {
    return Error{
        ErrorCode::kUsage,
        "'" + std::string(text) + "' is neither an address nor a network such as 10.1.0.0/16 or fd00::/8"};
  };
  const std::size_t slash = text.find('/');
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(without_zone(text.substr(0, slash)), ec);
  if (ec) return wrong();
  const unsigned width = address.is_v4() ? 32 : 128;
  unsigned prefix = width;
  if (slash != std::string_view::npos) {
    const auto given = parse_number<unsigned>(text.substr(slash + 1));
    if (!given || *given > width) return wrong();
    prefix = *given;
  }
  // A socket that serves both families shows IPv4 peers as ::ffff:10.0.0.7.
  const bool mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  if (mapped && prefix < 96) {
    const std::string v4 = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
    const std::string meant = prefix <= 32 ? v4 + "/" + std::to_string(prefix) : "10.1.0.0/16";
    return Error{
        ErrorCode::kUsage,
        "'" + std::string(text) + "' would admit every IPv4 address; write an IPv4 network as " + meant};
  }
  if (prefix == width)
    allow(address);
  else
    networks_.push_back({mapped_bytes(address), prefix + 128 - width});
  return {};
}

bool AddressFilter::allows(const asio::ip::address& address) const {
  if (empty()) return true;
  const auto bytes = mapped_bytes(address);
  return addresses_.contains(bytes) ||
         std::any_of(networks_.begin(), networks_.end(), [&bytes](const AddressRange& network) {
           return same_prefix(network.bytes, bytes, network.prefix);
         });
}

bool AddressFilter::notes_refusal(const asio::ip::address& address) {
  return refused_.size() < kMaxRemembered && refused_.insert(address).second;
}

namespace {

constexpr std::uint16_t kFirstPort = 10000;  // well-known services of a cluster use lower ports
constexpr std::uint16_t kNeighbours = 3;
constexpr std::uint16_t kLastPort = 65535 - kNeighbours;
constexpr int kMaxTries = 256;

bool neighbours_free(ListenScope scope, std::uint16_t port) {
  for (std::uint16_t i = 1; i <= kNeighbours; ++i) {
    if (port + i > 65535 || !is_port_free(scope, static_cast<std::uint16_t>(port + i))) return false;
  }
  return true;
}

// Random order, so that jobs that start together on one host do not try the same ports in turn.
std::vector<std::uint16_t> candidates(const std::vector<PortRange>& ranges) {
  std::vector<std::uint16_t> all;
  for (const PortRange& range : ranges) {
    for (unsigned port = range.first; port <= range.last; ++port)
      all.push_back(static_cast<std::uint16_t>(port));
  }
  // Not std::random_device: train contains this code, and must run on an older glibc (checkpoint.cc).
  std::uint32_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) < 0) seed = static_cast<std::uint32_t>(::getpid());
  std::minstd_rand random(seed);
  const std::size_t tries = std::min<std::size_t>(all.size(), kMaxTries);
  for (std::size_t i = 0; i < tries; ++i)
    std::swap(all[i], all[std::uniform_int_distribution<std::size_t>(i, all.size() - 1)(random)]);
  all.resize(tries);
  return all;
}

}  // namespace

Result<TcpListener> listen_tcp_picked(ListenScope scope, std::optional<PortRange> range) {
  const std::vector<PortRange> ranges = range ? std::vector{*range} : ports_beside(ephemeral_ports());
  if (!range && ranges.empty()) return listen_tcp(scope, 0);
  std::optional<TcpListener> alone;  // free, but with a successor in use
  Error last{ErrorCode::kUsage, "the range is empty"};
  for (const std::uint16_t port : candidates(ranges)) {
    Result<TcpListener> listener = listen_tcp(scope, port);
    if (!listener) {
      last = listener.error();
      if (last.sys != EADDRINUSE && last.sys != EACCES) return last;  // no other port would be better
      continue;
    }
    if (neighbours_free(scope, port)) return listener;
    if (!alone) alone = std::move(*listener);
  }
  if (alone) return std::move(*alone);
  const std::string where =
      range ? "in the range " + std::to_string(range->first) + "-" + std::to_string(range->last)
            : std::string("outside the ephemeral range");
  return Error{last.code, "no free port " + where + ": " + last.text, last.sys};
}

PortRange ephemeral_ports() {
  unsigned first = 32768;
  unsigned last = 60999;
  if (std::FILE* file = std::fopen("/proc/sys/net/ipv4/ip_local_port_range", "re")) {
    if (std::fscanf(file, "%u %u", &first, &last) != 2 || first > last || last > 65535) {
      first = 32768;
      last = 60999;
    }
    std::fclose(file);
  }
  return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)};
}

std::vector<PortRange> ports_beside(PortRange ephemeral) {
  std::vector<PortRange> out;
  // The successors must be outside as well.
  if (ephemeral.first > kFirstPort + kNeighbours) {
    out.push_back({kFirstPort, static_cast<std::uint16_t>(ephemeral.first - kNeighbours - 1)});
  }
  const unsigned above = std::max<unsigned>(ephemeral.last + 1U, kFirstPort);
  if (above <= kLastPort) out.push_back({static_cast<std::uint16_t>(above), kLastPort});
  return out;
}

}  // namespace ddp::rendezvous
