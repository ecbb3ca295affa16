#include "base/ip_address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/text.h"

namespace ddp {

bool IpAddress::is_loopback() const {
  if (!v6) return bytes[0] == 127;
  return bytes[15] == 1 && std::all_of(bytes.begin(), bytes.end() - 1, [](int byte) { return byte == 0; });
}

bool IpAddress::is_link_local() const {
  if (v6) return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  return bytes[0] == 169 && bytes[1] == 254;
}

std::optional<IpAddress> parse_ip_address(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return std::nullopt;
  const bool v6 = text.find(':') != std::string_view::npos;
  const std::string plain(text.substr(0, v6 ? text.find('%') : text.size()));
  IpAddress address{v6, {}};
  if (::inet_pton(v6 ? AF_INET6 : AF_INET, plain.c_str(), address.bytes.data()) != 1) return std::nullopt;
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (!v6 || !std::equal(kMapped.begin(), kMapped.end(), address.bytes.begin())) return address;
  IpAddress v4;
  std::copy_n(address.bytes.begin() + 12, 4, v4.bytes.begin());
  return v4;
}

bool is_loopback_host(std::string_view host) {
  const auto address = parse_ip_address(host);
  return host == "localhost" || (address && address->is_loopback());
}

bool IpNetwork::contains(const IpAddress& address) const {
  return address.v6 == base.v6 && network_of(address, prefix).base == base;
}

std::string IpNetwork::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  ::inet_ntop(base.v6 ? AF_INET6 : AF_INET, base.bytes.data(), text, sizeof text);
  return std::string(text) + "/" + std::to_string(prefix);
}

IpNetwork network_of(IpAddress address, unsigned prefix) {
  prefix = std::min(prefix, address.bits());
  for (unsigned bit = prefix; bit < address.bits(); ++bit)
    address.bytes[bit / 8] &= static_cast<std::uint8_t>(~(0x80U >> (bit % 8)));
  return {address, prefix};
}

Result<IpNetwork> parse_ip_network(std::string_view text) {
  const std::size_t slash = std::min(text.find('/'), text.size());
  const auto address = parse_ip_address(text.substr(0, slash));
  const bool mapped = address && !address->v6 && text.find(':') < slash;
  const unsigned width = address ? address->bits() + (mapped ? 96 : 0) : 0;
  const auto prefix = slash < text.size() ? parse_number<unsigned>(text.substr(slash + 1)) : width;
  if (!address || !prefix || *prefix > width) {
    return Error{
        ErrorCode::kUsage,
        "'" + std::string(text) + "' is neither an address nor a network such as 10.1.0.0/16 or fd00::/8"};
  }
  if (!mapped) return network_of(*address, *prefix);
  if (*prefix >= 96) return network_of(*address, *prefix - 96);
  const std::string meant = *prefix <= 32 ? IpNetwork{*address, *prefix}.text() : "10.1.0.0/16";
  return Error{ErrorCode::kUsage, "'" + std::string(text) +
                                      "' would admit every IPv4 address; write an IPv4 network as " + meant};
}

}  // namespace ddp
