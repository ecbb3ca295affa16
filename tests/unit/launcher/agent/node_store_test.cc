#include "launcher/node_store.h"

#include "rendezvous/tcp_listener.h"
#include "tests/support/catch.h"

namespace ddp::launcher {

TEST_CASE("a port that is taken is told with what to do, when it was wished for") {
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
  CHECK(refused.error().text == "store: cannot listen on port " + std::to_string(open.port) +
                                    ": Address already in use; name another --master-port, or leave it out, "
                                    "and a free port is taken");
}

}  // namespace ddp::launcher
