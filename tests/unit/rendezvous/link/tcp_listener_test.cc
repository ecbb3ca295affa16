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
  REQUIRE(filter.allow_network("10.0.0.7").has_value());
  REQUIRE(filter.allow_network("::ffff:10.0.0.8").has_value());
  REQUIRE(filter.allow_network("fd00::1").has_value());
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
  REQUIRE(filter.allow_network("fe80::1%eth0").has_value());
  CHECK(allows(filter, "fe80::1"));
  REQUIRE(filter.allow_network("0.0.0.0/0").has_value());
  CHECK(allows(filter, "8.8.8.8"));
  CHECK_FALSE(allows(filter, "2001:db8::1"));
}

TEST_CASE("a network that is refused is not admitted") {
  AddressFilter filter;
  CHECK(filter.allow_network("10.1.0.0/33").has_error());
  CHECK(filter.allow_network("::ffff:10.1.0.0/16").has_error());
  CHECK(filter.empty());
}

TEST_CASE("a network of IPv6 that contains the mapped addresses admits IPv4") {
  AddressFilter all, few;
  REQUIRE(all.allow_network("::/0").has_value());
  CHECK(allows(all, "10.1.2.3"));
  CHECK(allows(all, "fd00::1"));
  REQUIRE(few.allow_network("::/81").has_value());
  CHECK_FALSE(allows(few, "10.1.2.3"));
}

}  // namespace
}  // namespace ddp::rendezvous
