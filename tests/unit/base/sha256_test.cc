#include "base/crypto.h"

#include <string>

#include "tests/support/catch.h"

using ddp::Sha256;
using ddp::sha256_hex;

TEST_CASE("the examples of FIPS 180-4") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("the hash does not depend on the chunks") {
  std::string bytes;
  for (int i = 0; i < 300; ++i)
    bytes += static_cast<char>(i * 7);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    Sha256 cut;
    cut.add(part.substr(0, size / 3));
    cut.add(part.substr(size / 3));
    REQUIRE(cut.hex() == sha256_hex(part));
  }
}
