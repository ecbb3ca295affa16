#include "remote/ssh/known_hosts.h"

#include <string>

#include "tests/support/catch.h"

using namespace ddp::remote;

namespace {

const char* const kText =
    "# comment\n"
    "\n"
    "gpu01,10.0.0.1 ssh-ed25519 AAAAkey1 a comment\n"
    "gpu01 ssh-rsa AAAArsa1\n"
    "[gpu02]:2222 ssh-ed25519 AAAAkey2\r\n"
    "*.cluster,!bad.cluster ecdsa-sha2-nistp256 AAAAec\n"
    "@revoked gpu03 ssh-ed25519 AAAAold3\n"
    "gpu03 ssh-ed25519 AAAAkey3\n"
    "@cert-authority *.ca ssh-ed25519 AAAAca\n"
    "@unknown-marker gpu04 ssh-ed25519 AAAAkey4\n"
    "broken line\n"
    "gpu05 ssh-ed25519 AAAAkey5";

KnownHosts sample() {
  KnownHosts hosts;
  hosts.add_file("/known", kText);
  return hosts;
}

}  // namespace

TEST_CASE("plain names, addresses, ports and wildcards") {
  const KnownHosts hosts = sample();
  CHECK(hosts.find("gpu01", 22, "").verify("ssh-ed25519", "AAAAkey1") == KeyVerdict::kKnown);
  CHECK(hosts.find("GPU01", 22, "").verify("ssh-rsa", "AAAArsa1") == KeyVerdict::kKnown);
  CHECK(hosts.find("10.0.0.1", 22, "").verify("ssh-ed25519", "AAAAkey1") == KeyVerdict::kKnown);
  CHECK(hosts.find("gpu02", 2222, "").verify("ssh-ed25519", "AAAAkey2") == KeyVerdict::kKnown);
  CHECK(hosts.find("gpu02", 2222, "").name == "[gpu02]:2222");
  CHECK(hosts.find("gpu02", 22, "").verify("ssh-ed25519", "AAAAkey2") == KeyVerdict::kUnknown);
  CHECK(hosts.find("x.cluster", 22, "").verify("ecdsa-sha2-nistp256", "AAAAec") == KeyVerdict::kKnown);
  CHECK(hosts.find("bad.cluster", 22, "").verify("ecdsa-sha2-nistp256", "AAAAec") == KeyVerdict::kUnknown);
  CHECK(hosts.find("gpu05", 22, "").verify("ssh-ed25519", "AAAAkey5") == KeyVerdict::kKnown);
  CHECK(hosts.find("other", 2222, "gpu01").verify("ssh-ed25519", "AAAAkey1") ==
        KeyVerdict::kKnown);  // HostKeyAlias
}

TEST_CASE("another key is a change, and another type of key is not trusted either") {
  const HostKeys keys = sample().find("gpu01", 22, "");
  CHECK(keys.verify("ssh-ed25519", "AAAAother") == KeyVerdict::kChanged);
  REQUIRE(keys.witness("ssh-ed25519", "AAAAother") != nullptr);
  CHECK(keys.witness("ssh-ed25519", "AAAAother")->line == 3);
  CHECK(keys.witness("ssh-ed25519", "AAAAother")->file == "/known");
  CHECK(keys.verify("ecdsa-sha2-nistp256", "AAAAec") == KeyVerdict::kOtherType);
  CHECK(sample().find("nobody", 22, "").verify("ssh-ed25519", "AAAAkey1") == KeyVerdict::kUnknown);
  CHECK(sample().find("nobody", 22, "").witness("ssh-ed25519", "AAAAkey1") == nullptr);
}

TEST_CASE("a matching key known for the name without the port counts, as with ssh") {
  const HostKeys keys = sample().find("gpu01", 2222, "");
  CHECK(keys.verify("ssh-ed25519", "AAAAkey1") == KeyVerdict::kKnown);
  CHECK(keys.verify("ssh-ed25519", "AAAAother") == KeyVerdict::kUnknown);
}

TEST_CASE("markers: a revoked key stays revoked, and authorities and unknown markers give no trust") {
  const KnownHosts hosts = sample();
  CHECK(hosts.find("gpu03", 22, "").verify("ssh-ed25519", "AAAAold3") == KeyVerdict::kRevoked);
  CHECK(hosts.find("gpu03", 22, "").verify("ssh-ed25519", "AAAAkey3") == KeyVerdict::kKnown);
  CHECK(hosts.find("gpu03", 22, "").has_markers());
  CHECK(hosts.find("a.ca", 22, "").has_markers());
  CHECK(hosts.find("a.ca", 22, "").verify("ssh-ed25519", "AAAAca") == KeyVerdict::kUnknown);
  CHECK_FALSE(hosts.find("gpu01", 22, "").has_markers());
  CHECK(hosts.find("gpu04", 22, "").verify("ssh-ed25519", "AAAAkey4") == KeyVerdict::kUnknown);
}

TEST_CASE("hashed names") {
  KnownHosts hosts;
  const std::string salt("0123456789abcdefghij", 20);
  const std::string line = KnownHosts::new_line("[gpu01]:2222", "ssh-ed25519", "AAAAkey", salt);
  CHECK(line.substr(0, 3) == "|1|");
  CHECK(line.find("gpu01") == std::string::npos);
  CHECK(line.substr(line.find(' ')) == " ssh-ed25519 AAAAkey\n");
  hosts.add_file("/h", line);
  CHECK(hosts.find("gpu01", 2222, "").verify("ssh-ed25519", "AAAAkey") == KeyVerdict::kKnown);
  CHECK(hosts.find("gpu02", 2222, "").verify("ssh-ed25519", "AAAAkey") == KeyVerdict::kUnknown);
  CHECK(KnownHosts::new_line("gpu01", "ssh-ed25519", "AAAAkey", "") == "gpu01 ssh-ed25519 AAAAkey\n");
  // Lines that cannot be decoded are skipped.
  KnownHosts damaged;
  damaged.add_file("/d",
                   "|1|***|*** ssh-ed25519 AAAAkey\n|1| ssh-ed25519 AAAAkey\n|1|a ssh-ed25519 AAAAkey\n");
  CHECK(damaged.find("gpu01", 22, "").verify("ssh-ed25519", "AAAAkey") == KeyVerdict::kUnknown);
}

TEST_CASE("known key types are requested first") {
  const std::string all = "ssh-ed25519,ecdsa-sha2-nistp256,rsa-sha2-512,rsa-sha2-256";
  CHECK(sample().find("x.cluster", 22, "").order_algorithms(all) ==
        "ecdsa-sha2-nistp256,ssh-ed25519,rsa-sha2-512,rsa-sha2-256");
  CHECK(sample().find("gpu01", 22, "").order_algorithms(all) ==
        "ssh-ed25519,rsa-sha2-512,rsa-sha2-256,ecdsa-sha2-nistp256");
  CHECK(sample().find("nobody", 22, "").order_algorithms(all) == all);
  CHECK(sample().find("nobody", 22, "").order_algorithms("").empty());
}
