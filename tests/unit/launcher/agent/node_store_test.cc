#include "launcher/agent/node_store.h"

#include "rendezvous/link/tcp_listener.h"
#include "tests/support/catch.h"

namespace ddp::launcher {

TEST_CASE("a port in use is reported with the remedy when the user asked for it") {
  asio::io_context loop;
  NodeStore first(loop.get_executor(), [](const std::string&) {});
  NodeStore second(loop.get_executor(), [](const std::string&) {});
  rendezvous::OpenStore open;
  open.loopback_only = true;
  const auto opened = first.open(open);
  REQUIRE(opened.has_value());
  open.port = opened->port;
  const auto refused = second.open(open);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text ==
        "store: cannot listen on port " + std::to_string(open.port) +
            ": Address already in use; choose another --master-port, or omit it to use a free port");
}

TEST_CASE("a list of allowed addresses that cannot be parsed opens no store") {
  asio::io_context loop;
  NodeStore store(loop.get_executor(), [](const std::string&) {});
  rendezvous::OpenStore open;
  open.loopback_only = true;
  open.allow = {"010.1.0.1"};
  const auto refused = store.open(open);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().text ==
        "who may connect to the store: '010.1.0.1' is neither an address nor a network such as 10.1.0.0/16 "
        "or fd00::/8");
  open.allow = {"10.1.0.1", "fe80::1%of-another-machine"};
  CHECK(store.open(open).has_value());
}

}  // namespace ddp::launcher
