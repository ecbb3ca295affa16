#include "rendezvous/link/address_filter.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/parse_text.h"

namespace ddp::rendezvous {
namespace {

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

asio::ip::address without_mapping(const asio::ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

asio::ip::address address_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    return asio::ip::address_v4(ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr));
  }
  asio::ip::address_v6::bytes_type bytes{};
  if (storage.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, bytes.size());
  }
  return without_mapping(asio::ip::address_v6(bytes));
}

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
  const asio::ip::address plain = without_mapping(address);
  if (plain != address && prefix < 96) {
    const std::string meant = prefix <= 32 ? plain.to_string() + "/" + std::to_string(prefix) : "10.1.0.0/16";
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

}  // namespace ddp::rendezvous
