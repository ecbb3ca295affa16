// Replays what real clients of several PyTorch versions sent to the store (traces/, made by
// tests/net/store_record.py). The reply bytes must equal those that the client accepted.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "rendezvous/store/key_store.h"
#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

struct Trace {
  std::vector<std::string> sent;  // chunks as they arrived
  std::string answered;
};

Trace read_trace(const std::filesystem::path& path) {
  std::ifstream file(path);
  Trace trace;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line.substr(1));
    std::string bytes;
    for (std::string word; words >> word;)
      bytes.push_back(static_cast<char>(std::stoi(word, nullptr, 16)));
    if (line[0] == '>') {
      trace.sent.push_back(bytes);
    } else {
      trace.answered += bytes;
    }
  }
  return trace;
}

struct Replay {
  std::string answered;
  StoreDialect dialect = StoreDialect::kUnknown;
};

Replay replay(const std::vector<std::string>& chunks) {
  StoreDecoder decoder;
  KeyStore store;
  StoreRequest request;
  Replay out;
  std::vector<StoreNotice> notices;
  const auto serve = [&] {
    for (Result<bool> next = decoder.next(request);; next = decoder.next(request)) {
      REQUIRE(next.has_value());
      if (!*next) return;
      REQUIRE(store.handle(1, request, out.answered, notices).has_value());
    }
  };
  for (const std::string& chunk : chunks) {
    decoder.feed(chunk);
    serve();
    if (decoder.undecided()) {
      decoder.settle();
      serve();
    }
  }
  CHECK(notices.empty());
  CHECK(decoder.buffered() == 0);
  out.dialect = decoder.dialect();
  return out;
}

StoreDialect dialect_of(const std::string& version) {
  if (version.starts_with("1.") || version.starts_with("2.0.")) return StoreDialect::kOld20;
  return version.starts_with("2.1.") ? StoreDialect::kOld21 : StoreDialect::kNew;
}

TEST_CASE("recorded clients get the recorded answers") {
  int traces = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(DDP_SOURCE_DIR "/tests/unit/rendezvous/store/traces")) {
    const std::string version = entry.path().stem().string().substr(std::string("torch-").size());
    INFO(version);
    const Trace trace = read_trace(entry.path());
    REQUIRE_FALSE(trace.sent.empty());
    const Replay got = replay(trace.sent);
    CHECK(got.answered == trace.answered);
    CHECK(got.dialect == dialect_of(version));
    ++traces;
  }
  CHECK(traces == 6);
}

}  // namespace
}  // namespace ddp::rendezvous
