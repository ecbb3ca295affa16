#include "base/ip_address.h"

#include "tests/support/catch.h"

namespace ddp {
namespace {

std::string network(std::string_view text) {
  const auto read = parse_ip_network(text);
  return read ? read->text() : read.error().text;
}

TEST_CASE("an address is read without its zone, and a mapped one as IPv4") {
  CHECK(parse_ip_address("::ffff:10.0.0.7") == parse_ip_address("10.0.0.7"));
  CHECK(parse_ip_address("fe80::1%eth0") == parse_ip_address("fe80::1"));
  CHECK(*parse_ip_address("255.0.0.1") < *parse_ip_address("::1"));
  for (const std::string_view wrong :
       {std::string_view(), std::string_view("host"), std::string_view("10.1"),
        std::string_view("10.0.0.1%lo"), std::string_view("[::1]"), std::string_view("10.0.0.1\0x", 10)})
    CHECK_FALSE(parse_ip_address(wrong));
}

TEST_CASE("loopback and link-local addresses of both families") {
  for (const char* host : {"localhost", "127.9.0.1", "::1", "0:0::1", "::ffff:127.0.0.1"})
    CHECK(is_loopback_host(host));
  for (const char* host : {"", "126.0.0.1", "::2", "1::1", "127.example", "gpu01"})
    CHECK_FALSE(is_loopback_host(host));
  for (const char* text : {"169.254.0.1", "fe80::1", "febf::1"})
    CHECK(parse_ip_address(text)->is_link_local());
  for (const char* text : {"169.255.0.1", "fec0::1", "10.0.0.1"})
    CHECK_FALSE(parse_ip_address(text)->is_link_local());
}

TEST_CASE("a network is its masked address and prefix") {
  CHECK(network("10.1.2.3/16") == "10.1.0.0/16");
  CHECK(network("192.168.4.200/25") == "192.168.4.128/25");
  CHECK(network("fdff::1/8") == "fd00::/8");
  CHECK(network("10.0.0.7") == "10.0.0.7/32");
  CHECK(network("fe80::1%eth0") == "fe80::1/128");
  CHECK(network("::ffff:10.1.0.0/112") == "10.1.0.0/16");
  CHECK(network("::ffff:0:0/96") == "0.0.0.0/0");
  const auto all = *parse_ip_network("0.0.0.0/0");
  CHECK(all.contains(*parse_ip_address("::ffff:8.8.8.8")));
  CHECK_FALSE(all.contains(*parse_ip_address("2001:db8::1")));
}

TEST_CASE("a text that is no network, or a mapped one with all of IPv4, is an error") {
  for (const char* text :
       {"", "10.1.0.0/33", "10.1.0.0/", "10.1.0.0/8x", "10.1/16", "host", "fd00::/129", "/8"}) {
    CHECK(network(text) ==
          "'" + std::string(text) + "' is neither an address nor a network such as 10.1.0.0/16 or fd00::/8");
    CHECK(parse_ip_network(text).error().code == ErrorCode::kUsage);
  }
  CHECK(network("::ffff:10.1.0.0/16") ==
        "'::ffff:10.1.0.0/16' would admit every IPv4 address; write an IPv4 network as 10.1.0.0/16");
  CHECK(network("::ffff:0:0/95") ==
        "'::ffff:0:0/95' would admit every IPv4 address; write an IPv4 network as 10.1.0.0/16");
}

}  // namespace
}  // namespace ddp
