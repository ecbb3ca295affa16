// Parses arbitrary bytes as a ClientHello and as the link identity inside. The verdict must not depend on the
// size of the chunks. The identity must lie within the input and must survive a round trip.
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/link/link_hello.h"
#include "tests/fuzz/require.h"
#include "tests/unit/rendezvous/link/client_hello_bytes.h"

using namespace ddp::rendezvous;

namespace {

void parsed(std::string_view bytes) {
  bytes = bytes.substr(0, kMaxClientHello);
  const ParsedClientHello whole = parse_client_hello(bytes);
  if (!whole.identity.empty()) {
    require(!whole.refusal && whole.identity.data() > bytes.data() &&
            whole.identity.data() + whole.identity.size() < bytes.data() + bytes.size());
  }
  require((whole.refusal == LinkRefusal::kOtherTls) == !whole.why.empty());
  // The reader stops at the first verdict, so a prefix must be undecided or give the same verdict. Only bytes
  // behind an offer may still change the verdict.
  for (std::size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 16) {
    const ParsedClientHello part = parse_client_hello(bytes.substr(0, size));
    require((part.identity.empty() && !part.refusal) ||
            (part.identity.empty() == whole.identity.empty() && part.refusal == whole.refusal) ||
            (!part.identity.empty() && whole.why == "it does not wait for an answer"));
  }
}

void read(std::string_view text) {
  const auto identity = parse_identity(text);
  if (identity) require(identity_text(*identity) == text && text.size() <= LinkIdentity::kMaxText);
  for (const char c : printable_start(text))
    require(c >= 0x20 && c < 0x7f);
  require(is_link_name(link_name_of(text)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parsed(bytes);
  read(bytes);
  read("ddplaunch-link/2 " + std::string(bytes));
  // Place the bytes where the parser reads them: as identity, as extensions, and over a valid ClientHello.
  ddp::test::HelloBytes hello;
  hello.identity = bytes.substr(0, 300);
  parsed(hello.record());
  hello = {};
  hello.more = bytes;
  parsed(hello.record());
  std::string record = ddp::test::HelloBytes().record();
  for (std::size_t i = 0; i + 1 < size; i += 2)
    record[data[i] % record.size()] = static_cast<char>(data[i + 1]);
  parsed(record);
  return 0;
}
