#include "rendezvous/link/link_hello.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

TEST_CASE("a refused master is pointed to the daemon, not to the job's master") {
  const LinkSide here{"gpu01:29499", "the token file /t", "3f9a2c", "job1", LinkRole::kMaster};
  CHECK(join_refusal_text(LinkRefusal::kPlain, here) ==
        "the program that answers at gpu01:29499 is not ddplaunchd --listen. Check the port: port= in the "
        "hostfile, or "
        "--daemon-port");
  CHECK(join_refusal_text(LinkRefusal::kOtherLink, here) ==
        "gpu01:29499 runs ddplaunch with another version of the link protocol. Install the same version on "
        "all nodes, "
        "and "
        "restart the daemon");
}

TEST_CASE("an alert carries the refusal from the listening to the joining side") {
  for (const LinkRefusal refusal :
       {LinkRefusal::kTokenDiffers, LinkRefusal::kOtherJob, LinkRefusal::kOtherRole, LinkRefusal::kOtherLink,
        LinkRefusal::kOtherTls}) {
    const std::string record = alert_record(refusal);
    REQUIRE(record.size() == 7);
    CHECK(refusal_of(static_cast<std::uint8_t>(record.back())) == refusal);
  }
  CHECK(refusal_of(47) == LinkRefusal::kTokenDiffers);  // as OpenSSL reports it
  CHECK_FALSE(refusal_of(80).has_value());
  CHECK(alert_record(LinkRefusal::kHttp).empty());
}

TEST_CASE("the joining side reports who has which value, and the remedy") {
  const LinkSide here{"gpu01:29400 (10.0.0.2)", "DDPLAUNCH_TOKEN", "3f9a2c", "job1"};
  CHECK(join_refusal_text(LinkRefusal::kTokenDiffers, here) ==
        "the token differs: gpu01:29400 (10.0.0.2) has another token than this node, which uses "
        "DDPLAUNCH_TOKEN (check 3f9a2c). The other side's log names the source and the check of its token. "
        "Give both sides the same token: the same DDPLAUNCH_TOKEN, or the same --token-file");
  CHECK(
      join_refusal_text(LinkRefusal::kOtherJob, here) ==
      "gpu01:29400 (10.0.0.2) does not run job job1: the address is another job's, or this node has another "
      "--job-id. Use the same --job-id on all nodes, and the MASTER_ADDR and MASTER_PORT of this job");
}

TEST_CASE("the listening side reports peer, claim and error text") {
  const LinkSide here{"the control port 29400", "the file /run/token", "71b2d0"};
  CHECK(refusal_line(LinkRefusal::kTokenDiffers, "10.0.0.3",
                     LinkIdentity{LinkRole::kAgent, "job1", "gpu02", {}}, "", here) ==
        "refused 10.0.0.3 (node gpu02, job job1): its token differs from ours (the file /run/token, check "
        "71b2d0)");
  CHECK(refusal_line(LinkRefusal::kHttp, "10.0.0.9", std::nullopt,
                     printable_start("GET /metrics HTTP/1.1\r\nHost: x"), here) ==
        "10.0.0.9 sent HTTP to the control port 29400: \"GET /metrics HTTP/1.1\", which is not a web server "
        "or proxy; closed");
}

TEST_CASE("bytes of an unknown peer are shown as printable text") {
  CHECK(printable_start(std::string_view("\x1b[2J\0\xff", 6)) == "\".[2J..\"");
  CHECK(printable_start(std::string(100, 'x')).size() == 42);
  CHECK(printable_start("one\ntwo") == "\"one\"");
}

}  // namespace
}  // namespace ddp::rendezvous
