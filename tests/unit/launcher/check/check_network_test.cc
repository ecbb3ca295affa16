#include "launcher/check/check_diagnosis.h"

#include "tests/support/catch.h"

namespace ddp::launcher {

TEST_CASE("interface names match as in NCCL and Gloo") {
  const std::vector<rendezvous::Interface> has{{"lo", "127.0.0.1", 8, true, true},
                                               {"eth01", "10.0.0.1", 24, true, false},
                                               {"ib0", "10.1.0.1", 24, true, false}};
  for (const char* value :
       {"eth", "eth01", "=eth01", "foo,ib", "=foo,ib0", "^docker", "^eth,lo", "^=eth", "", "ib0:4000"}) {
    CAPTURE(value);
    CHECK(nccl_finds(has, value));
  }
  for (const char* value : {"foo", "=eth", "eth02", "foo,=ib0", "^eth,lo,ib", "^=eth01,lo,ib0"}) {
    CAPTURE(value);
    CHECK_FALSE(nccl_finds(has, value));
  }
  CHECK(gloo_lacks(has, "eth01,ib0").empty());
  CHECK(gloo_lacks(has, "eth0,ib0,x") == "eth0, x");
  CHECK(gloo_lacks(has, "").empty());
}

}  // namespace ddp::launcher
