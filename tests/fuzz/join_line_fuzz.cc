// Parses arbitrary bytes as the hello of the end that connects and as the answer. A parsed line must be
// within its limits, and must survive a round trip of writing and parsing.
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/links/join_table.h"
#include "tests/fuzz/require.h"

using namespace ddp::launcher;
using namespace ddp::rendezvous;

namespace {

std::string without_end(std::string line) {
  require(!line.empty() && line.back() == '\n');
  line.pop_back();
  return line;
}

void hello(std::string_view line) {
  const auto read = parse_hello(line);
  if (!read) return;
  require(read->protocol >= 0 && read->nodes >= 0 && read->rank.value_or(0) >= 0);
  const auto again = parse_hello(without_end(hello_line(*read)));
  require(again && again->protocol == read->protocol && again->version == read->version &&
          again->rank == read->rank && again->nodes == read->nodes);
}

void answer(std::string_view line) {
  const auto read = parse_answer(line);
  if (!read) return;
  require(read->rank.value_or(0) >= 0);
  const std::string written = without_end(answer_line(*read));
  require(written.size() <= kMaxHelloLine || read->rank);
  const auto again = parse_answer(written);
  require(again && again->rank == read->rank && again->job_id == read->job_id &&
          again->refusal == read->refusal);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const std::string& line :
       {bytes, "ddplaunch-join " + bytes, "ddplaunch-slot " + bytes, "ddplaunch-refused taken " + bytes}) {
    hello(line);
    answer(line);
  }
  const auto rank = join_host_rank(bytes);
  require(!rank || *rank >= 0);
  return 0;
}
