#include "rendezvous/link/tcp_listener.h"

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

bool allows(const AddressFilter& filter, const char* address) {
  return filter.allows(asio::ip::make_address(address));
}

TEST_CASE("an empty filter admits every address") {
  CHECK(allows(AddressFilter(), "203.0.113.9"));
  CHECK(allows(AddressFilter(), "2001:db8::1"));
}

TEST_CASE("single addresses match, mapped or not") {
  AddressFilter filter;
  filter.allow(asio::ip::make_address("10.0.0.7"));
  filter.allow(asio::ip::make_address("::ffff:10.0.0.8"));
  filter.allow(asio::ip::make_address("fd00::1"));
  CHECK(allows(filter, "10.0.0.7"));
  CHECK(allows(filter, "::ffff:10.0.0.7"));
  CHECK(allows(filter, "10.0.0.8"));
  CHECK(allows(filter, "fd00::1"));
  CHECK_FALSE(allows(filter, "10.0.0.9"));
  CHECK_FALSE(allows(filter, "fd00::2"));
  CHECK_FALSE(allows(filter, "127.0.0.1"));
}

TEST_CASE("networks match their addresses") {
  AddressFilter filter;
  REQUIRE(filter.allow_network("10.1.0.0/16").has_value());
  REQUIRE(filter.allow_network("192.168.4.128/25").has_value());
  REQUIRE(filter.allow_network("fd00::/8").has_value());
  REQUIRE(filter.allow_network("203.0.113.9").has_value());
  CHECK(allows(filter, "10.1.255.255"));
  CHECK(allows(filter, "::ffff:10.1.2.3"));
  CHECK_FALSE(allows(filter, "10.2.0.0"));
  CHECK(allows(filter, "192.168.4.200"));
  CHECK_FALSE(allows(filter, "192.168.4.127"));
  CHECK(allows(filter, "fdff::1"));
  CHECK_FALSE(allows(filter, "fe00::1"));
  CHECK(allows(filter, "203.0.113.9"));
  CHECK_FALSE(allows(filter, "203.0.113.8"));
  REQUIRE(filter.allow_network("0.0.0.0/0").has_value());
  CHECK(allows(filter, "8.8.8.8"));
  CHECK_FALSE(allows(filter, "2001:db8::1"));
}

TEST_CASE("a malformed network is an error") {
  for (const char* text :
       {"", "10.1.0.0/33", "10.1.0.0/", "10.1.0.0/8x", "10.1/16", "host", "fd00::/129", "/8"}) {
    AddressFilter filter;
    const Result<> done = filter.allow_network(text);
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == ErrorCode::kUsage);
    CHECK(done.error().text ==
          "'" + std::string(text) + "' is neither an address nor a network such as 10.1.0.0/16 or fd00::/8");
    CHECK(filter.empty());
  }
}

TEST_CASE("a mapped network is an IPv4 network, not all of IPv4") {
  AddressFilter filter;
  const auto refused = [&filter](const char* text) { return filter.allow_network(text).error().text; };
  CHECK(refused("::ffff:10.1.0.0/16") ==
        "'::ffff:10.1.0.0/16' would admit every IPv4 address; write an IPv4 network as 10.1.0.0/16");
  CHECK(refused("::ffff:0:0/95") ==
        "'::ffff:0:0/95' would admit every IPv4 address; write an IPv4 network as 10.1.0.0/16");
  CHECK(filter.empty());
  REQUIRE(filter.allow_network("::ffff:10.1.0.0/112").has_value());
  CHECK(allows(filter, "10.1.2.3"));
  CHECK_FALSE(allows(filter, "10.2.0.1"));
  CHECK(AddressFilter().allow_network("::ffff:0:0/96").has_value());
}

}  // namespace
}  // namespace ddp::rendezvous
