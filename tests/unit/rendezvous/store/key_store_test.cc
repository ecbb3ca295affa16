#include "rendezvous/store/key_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/store/store_bytes.h"

namespace ddp::rendezvous {
namespace {

using test::RequestBytes;
using O = StoreOp;
using Keys = std::vector<std::string>;

// A store with connections 1, 2, …: say() returns the reply to the sender, and `heard` gathers the bytes for
// the other connections.
struct Store {
  explicit Store(std::size_t max_bytes = KeyStore::kDefaultMaxBytes) : keys(max_bytes) {}

  Result<std::string> ask(StoreConnectionId from, const std::string& bytes) {
    StoreDecoder decoder;
    StoreRequest request;
    decoder.feed(test::greeting() + bytes);
    REQUIRE(*decoder.next(request));
    REQUIRE(*decoder.next(request));
    std::string reply;
    std::vector<StoreNotice> notices;
    const Result<> done = keys.handle(from, request, reply, notices);
    for (const StoreNotice& notice : notices)
      heard[notice.to] += notice.bytes;
    if (!done) return done.error();
    return reply;
  }
  std::string say(StoreConnectionId from, const std::string& bytes) { return ask(from, bytes).value(); }
  std::string set(StoreConnectionId from, const std::string& key, const std::string& value) {
    return say(from, RequestBytes(O::kSet).text(key).text(value));
  }
  std::string wait(StoreConnectionId from, const Keys& names) {
    return say(from, RequestBytes(O::kWait).list(names));
  }
  std::string get(const std::string& key) { return say(99, RequestBytes(O::kGet).text(key)); }
  void close(StoreConnectionId from) {
    std::vector<StoreNotice> notices;
    keys.close(from, notices);
    for (const StoreNotice& notice : notices)
      heard[notice.to] += notice.bytes;
  }

  KeyStore keys;
  std::map<StoreConnectionId, std::string> heard;
};

std::string text(const std::string& value) {
  return RequestBytes().text(value);
}
std::string number(std::int64_t value) {
  return RequestBytes().number(value);
}
const std::string kAwake(1, '\0');
const std::string kReady(1, '\0');
const std::string kNotReady(1, '\1');
const std::string kCanceled(1, '\1');

TEST_CASE("values: set, get, append, delete, count, list") {
  Store store;
  CHECK(store.set(1, "b", "one").empty());
  CHECK(store.get("b") == text("one"));
  CHECK(store.get("missing") == text(""));
  store.set(2, "b", "");
  CHECK(store.get("b") == text(""));
  CHECK(store.say(1, RequestBytes(O::kAppend).text("log").text("x")).empty());
  CHECK(store.say(2, RequestBytes(O::kAppend).text("log").text("yz")).empty());
  CHECK(store.get("log") == text("xyz"));
  CHECK(store.say(1, RequestBytes(O::kMultiSet).number(2).text("c").text("3").text("a").text("1")).empty());
  CHECK(store.say(1, RequestBytes(O::kMultiGet).list({"c", "missing", "a"})) ==
        text("3") + text("") + text("1"));
  CHECK(store.say(1, RequestBytes(O::kNumKeys)) == number(4));
  CHECK(store.say(1, RequestBytes(O::kListKeys)) ==
        number(4) + text("a") + text("b") + text("c") + text("log"));
  CHECK(store.say(1, RequestBytes(O::kDeleteKey).text("b")) == number(1));
  CHECK(store.say(1, RequestBytes(O::kDeleteKey).text("b")) == number(0));
  CHECK(store.say(1, RequestBytes(O::kNumKeys)) == number(3));
  CHECK(store.say(1, RequestBytes(O::kPing).u32(77)) == RequestBytes().u32(77).str());
}

TEST_CASE("a list of very many keys is an error, until enough are deleted") {
  Store store;
  const std::string long_key(1000, 'k');
  for (int i = 0; i < 1040; ++i)
    store.set(1, long_key + std::to_string(1000 + i), "");
  CHECK(store.ask(1, RequestBytes(O::kListKeys)).error().text ==
        "LIST_KEYS: the reply would be over the store's limit of 1048576 bytes");
  for (int i = 0; i < 40; ++i)
    CHECK(store.say(1, RequestBytes(O::kDeleteKey).text(long_key + std::to_string(1000 + i))) == number(1));
  CHECK(store.ask(1, RequestBytes(O::kListKeys)).has_value());
}

TEST_CASE("numbers are decimal text") {
  Store store;
  const auto add = [&store](const std::string& key, std::int64_t amount) {
    return store.ask(1, RequestBytes(O::kAdd).text(key).number(amount));
  };
  CHECK(*add("n", 5) == number(5));
  CHECK(*add("n", -7) == number(-2));
  CHECK(store.get("n") == text("-2"));
  store.set(1, "text", " +41 and more");
  CHECK(*add("text", 1) == number(42));
  CHECK(*add("max", INT64_MAX) == number(INT64_MAX));
  CHECK(*add("max", 1) == number(INT64_MIN));

  store.set(1, "word", "many");
  const Result<std::string> wrong = add("word", 1);
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().code == ErrorCode::kProtocol);
  CHECK(wrong.error().text == "cannot add to 'word': its value is not a 64-bit number");
  CHECK(store.get("word") == text("many"));
  store.set(1, "word", "");
  CHECK_FALSE(add("word", 1).has_value());
  store.set(1, "word", "99999999999999999999");
  CHECK_FALSE(add("word", 1).has_value());
}

TEST_CASE("compare_set stores only over the expected value") {
  Store store;
  const auto compare_set = [&store](const std::string& expected, const std::string& desired) {
    return store.say(1, RequestBytes(O::kCompareSet).text("k").text(expected).text(desired));
  };
  CHECK(store.wait(2, {"k"}).empty());
  CHECK(compare_set("old", "new") == text("old"));  // key missing: returns the expected value, stores nothing
  CHECK(store.say(1, RequestBytes(O::kNumKeys)) == number(0));
  CHECK(store.heard.empty());
  CHECK(compare_set("", "first") == text("first"));
  CHECK(store.heard[2] == kAwake);
  CHECK(compare_set("wrong", "second") == text("first"));
  CHECK(compare_set("first", "second") == text("second"));
  CHECK(store.get("k") == text("second"));
}

TEST_CASE("a wait ends with the last of its keys") {
  Store store;
  store.set(1, "a", "");
  CHECK(store.wait(2, {}) == kAwake);
  CHECK(store.wait(2, {"a"}) == kAwake);
  CHECK(store.wait(2, {"a", "b", "c", "b"}).empty());
  CHECK(store.wait(3, {"c"}).empty());
  CHECK(store.keys.has_waiters());
  store.set(1, "b", "");
  CHECK(store.heard.empty());
  store.say(1, RequestBytes(O::kDeleteKey).text("b"));  // the key was seen and stays seen
  store.say(1, RequestBytes(O::kAdd).text("c").number(0));
  CHECK(store.heard[2] == kAwake);
  CHECK(store.heard[3] == kAwake);
  CHECK_FALSE(store.keys.has_waiters());
  store.set(1, "c", "again");
  CHECK(store.heard[2] == kAwake);
}

TEST_CASE("a second wait replaces the first") {
  Store store;
  store.wait(2, {"a", "b"});
  store.wait(2, {"c", "d"});
  store.set(1, "a", "");
  store.set(1, "b", "");
  CHECK(store.heard.empty());
  store.set(1, "c", "");
  store.set(1, "d", "");
  CHECK(store.heard[2] == kAwake);
}

TEST_CASE("append and multi-set wake waiters too") {
  Store store;
  store.wait(2, {"log"});
  store.wait(3, {"m"});
  store.say(1, RequestBytes(O::kAppend).text("log").text("x"));
  store.say(1, RequestBytes(O::kMultiSet).number(1).text("m").text("1"));
  CHECK(store.heard[2] == kAwake);
  CHECK(store.heard[3] == kAwake);
}

TEST_CASE("a client that gave up its wait gets no late byte") {
  Store store;
  SECTION("torch <= 2.0 continues with its next request") {
    CHECK(store.wait(2, {"late"}).empty());
    CHECK(store.say(2, RequestBytes(O::kAdd).text("n").number(7)) == number(7));
  }
  SECTION("torch >= 2.1 cancels") {
    CHECK(store.wait(2, {"late"}).empty());
    CHECK(store.say(2, RequestBytes(O::kCancelWait)) == kCanceled);
  }
  SECTION("the client has closed") {
    CHECK(store.wait(2, {"late"}).empty());
    store.close(2);
  }
  SECTION("the client waits for another key") {
    CHECK(store.wait(2, {"late"}).empty());
    CHECK(store.wait(2, {"other"}).empty());
  }
  store.set(1, "late", "");
  CHECK(store.heard.empty());
  store.set(1, "other", "");
  CHECK_FALSE(store.keys.has_waiters());
}

TEST_CASE("a cancellation that crosses the wake-up is still answered") {
  Store store;
  store.wait(2, {"k"});
  store.set(1, "k", "");
  CHECK(store.heard[2] == kAwake);
  CHECK(store.say(2, RequestBytes(O::kCancelWait)) == kCanceled);
}

TEST_CASE("check answers without waiting") {
  Store store;
  store.set(1, "a", "");
  CHECK(store.say(1, RequestBytes(O::kCheck).list({"a"})) == kReady);
  CHECK(store.say(1, RequestBytes(O::kCheck).list({"a", "b"})) == kNotReady);
  CHECK(store.say(1, RequestBytes(O::kCheck).list({})) == kReady);
}

TEST_CASE("queues are first in, first out, and one push wakes one waiter") {
  Store store;
  const auto push = [&store](const std::string& value) {
    return store.say(1, RequestBytes(O::kQueuePush).text("q").text(value));
  };
  const auto pop = [&store](StoreConnectionId from) {
    return store.say(from, RequestBytes(O::kQueuePop).text("q"));
  };
  CHECK(pop(1) == number(0));
  CHECK(push("a").empty());
  CHECK(push("b").empty());
  CHECK(store.say(1, RequestBytes(O::kQueueLen).text("q")) == number(2));
  CHECK(store.say(1, RequestBytes(O::kCheck).list({"q"})) == kReady);
  CHECK(store.say(1, RequestBytes(O::kNumKeys)) == number(0));
  CHECK(pop(2) == number(2) + text("a"));
  CHECK(pop(3) == number(1) + text("b"));
  CHECK(store.say(1, RequestBytes(O::kQueueLen).text("q")) == number(0));
  CHECK(store.keys.bytes() == 0);

  SECTION("one value wakes the first waiter only") {
    store.wait(2, {"q"});
    store.wait(3, {"q"});
    push("c");
    CHECK(store.heard == std::map<StoreConnectionId, std::string>{{2, kAwake}});
    CHECK(store.keys.has_waiters());
    CHECK(pop(2) == number(1) + text("c"));
    push("d");
    CHECK(store.heard[3] == kAwake);
  }
  SECTION("a woken waiter that comes too late wakes no other") {
    store.wait(2, {"q"});
    store.wait(3, {"q"});
    push("c");
    CHECK(pop(4) == number(1) + text("c"));
    store.say(2, RequestBytes(O::kNumKeys));
    CHECK(store.heard == std::map<StoreConnectionId, std::string>{{2, kAwake}});
  }
  SECTION("a waiter that waits again is the last") {
    store.wait(2, {"q"});
    store.wait(3, {"q"});
    push("c");
    CHECK(pop(2) == number(1) + text("c"));
    store.wait(2, {"q"});
    push("d");
    CHECK(store.heard == std::map<StoreConnectionId, std::string>{{2, kAwake}, {3, kAwake}});
  }
  SECTION("a waiter that closes or stops waiting leaves the value to the next") {
    store.wait(2, {"q"});
    store.wait(3, {"q"});
    store.wait(4, {"q"});
    push("c");
    store.close(2);
    CHECK(store.heard[3] == kAwake);
    store.say(3, RequestBytes(O::kNumKeys));
    CHECK(store.heard[4] == kAwake);
    CHECK(pop(4) == number(1) + text("c"));
  }
}

TEST_CASE("a barrier releases all with the last") {
  Store store;
  const auto arrive = [&store](StoreConnectionId from) {
    return store.say(from, RequestBytes(O::kBarrier).text("b").number(3));
  };
  CHECK(arrive(1).empty());
  CHECK(arrive(2).empty());
  CHECK(store.heard.empty());
  CHECK(store.say(2, RequestBytes(O::kCancelWait)) == kCanceled);
  CHECK(arrive(3) == kAwake);
  CHECK(store.heard == std::map<StoreConnectionId, std::string>{{1, kAwake}});
  CHECK(store.get("b") == text("3"));
  CHECK(arrive(4) == kAwake);  // as in PyTorch's store: the count stays, and a used barrier is open
  store.set(1, "b", "word");
  CHECK(store.ask(5, RequestBytes(O::kBarrier).text("b").number(3)).error().text ==
        "cannot add to 'b': its value is not a 64-bit number");
  const std::string most = std::to_string(std::numeric_limits<std::int64_t>::max());
  store.set(1, "b", most);
  CHECK(arrive(6) == kAwake);
  CHECK(store.get("b") == text(most));
}

TEST_CASE("memory is bounded and released") {
  Store store(10000);
  const std::string kilobyte(1000, 'x');
  Result<std::string> full = std::string();
  int stored = 0;
  while (full && stored < 100)
    full = store.ask(1, RequestBytes(O::kSet).text("k" + std::to_string(stored++)).text(kilobyte));
  REQUIRE_FALSE(full.has_value());
  CHECK(full.error().code == ErrorCode::kSystem);
  CHECK(full.error().sys == ENOMEM);
  CHECK(full.error().text == "the store is full: 0 of 0 MiB are used by 8 keys");
  CHECK(store.keys.bytes() <= 10000);
  CHECK_FALSE(store.ask(1, RequestBytes(O::kQueuePush).text("q").text(kilobyte)).has_value());
  CHECK_FALSE(store.ask(1, RequestBytes(O::kAppend).text("k1").text(kilobyte)).has_value());
  store.set(1, "k0", "small");
  CHECK(store.ask(1, RequestBytes(O::kSet).text("k9").text("fits")).has_value());
  for (const char* key : {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k9"})
    store.say(1, RequestBytes(O::kDeleteKey).text(key));
  CHECK(store.keys.bytes() == 0);

  Store exact(KeyStore::kEntryCost + 3);
  CHECK(exact.ask(1, RequestBytes(O::kSet).text("k").text("vv")).has_value());
  Store larger(std::size_t{2} << 20);
  larger.set(1, "k", std::string(std::size_t{1} << 20, 'v'));
  CHECK(larger.ask(1, RequestBytes(O::kSet).text("l").text(std::string(std::size_t{1} << 20, 'v')))
            .error()
            .text == "the store is full: 1 of 2 MiB are used by 1 key");
}

TEST_CASE("replies are bounded in size") {
  Store store;
  store.set(1, "big", std::string(64 * 1024 * 1024, 'x'));
  CHECK(store.ask(1, RequestBytes(O::kMultiGet).list(Keys(9, "big"))).error().text ==
        "MULTI_GET: the reply would be over the store's limit of 536870912 bytes");
  const std::string value(100, 'y');
  store.set(1, "small", value);
  CHECK(store.say(1, RequestBytes(O::kMultiGet).list({"small", "none"})) == text(value) + text(""));
}

TEST_CASE("a connection woken for one queue that pops another one leaves the value to the next waiter") {
  Store store;
  const auto pop = [&store](StoreConnectionId from, const std::string& queue) {
    return store.say(from, RequestBytes(O::kQueuePop).text(queue));
  };
  store.wait(2, {"q"});
  store.wait(3, {"q"});
  store.say(1, RequestBytes(O::kQueuePush).text("q").text("a"));
  CHECK(store.heard == std::map<StoreConnectionId, std::string>{{2, kAwake}});
  SECTION("the other queue") {
    CHECK(pop(2, "other") == number(0));
    CHECK(store.heard[3] == kAwake);
  }
  SECTION("its own queue") {
    CHECK(pop(2, "q") == number(1) + text("a"));
    CHECK(store.heard == std::map<StoreConnectionId, std::string>{{2, kAwake}});
  }
}

// The model has the same keys and queues; an entry costs its bytes and kEntryCost.
TEST_CASE("property: bytes() counts exactly what is stored, after every operation") {
  constexpr std::size_t kMost = 1000;
  int refused = 0;
  for (std::uint32_t seed = 0; seed < 15; ++seed) {
    std::mt19937 random(seed);
    Store store(kMost);
    std::map<std::string, std::string> values;
    std::map<std::string, std::deque<std::string>> queues;
    const auto bytes = [&] {
      std::size_t sum = 0;
      for (const auto& [key, value] : values)
        sum += key.size() + value.size() + KeyStore::kEntryCost;
      for (const auto& [key, queue] : queues)
        for (const std::string& value : queue)
          sum += key.size() + value.size() + KeyStore::kEntryCost;
      return sum;
    };
    for (int step = 0; step < 400; ++step) {
      INFO("seed " << seed << ", step " << step);
      const std::string key(1 + random() % 4, 'k');
      const std::string value(random() % 200, 'v');
      const auto old_values = values;
      const auto old_queues = queues;
      std::string request;
      switch (random() % 8) {
        case 0:
          request = RequestBytes(O::kSet).text(key).text(value);
          values[key] = value;
          break;
        case 1:
          request = RequestBytes(O::kAppend).text(key).text(value);
          values[key] += value;
          break;
        case 2:
          request = RequestBytes(O::kCompareSet).text(key).text(values[key]).text(value);
          values[key] = value;
          break;
        case 3:
          request = RequestBytes(O::kMultiSet).number(1).text(key).text(value);
          values[key] = value;
          break;
        case 4: {
          const std::int64_t before = values.contains("count") ? std::stoll(values["count"]) : 0;
          const std::int64_t after = std::int64_t{1} << random() % 60;
          request = RequestBytes(O::kAdd).text("count").number(after - before);
          values["count"] = std::to_string(after);
          break;
        }
        case 5:
          request = RequestBytes(O::kDeleteKey).text(key);
          values.erase(key);
          break;
        case 6:
          request = RequestBytes(O::kQueuePush).text(key).text(value);
          queues[key].push_back(value);
          break;
        case 7:
          request = RequestBytes(O::kQueuePop).text(key);
          if (!queues[key].empty()) queues[key].pop_front();
          break;
      }
      const bool fits = bytes() <= kMost;
      REQUIRE(store.ask(1, request).has_value() == fits);
      if (!fits) {  // a refused request changes nothing
        values = old_values;
        queues = old_queues;
        ++refused;
      }
      REQUIRE(store.keys.bytes() == bytes());
    }
  }
  CHECK(refused > 0);
}

// Replays what real clients of several PyTorch versions sent to the store (traces/, made by
// tests/net/store_record.py). The reply bytes must equal those that the client accepted.

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
      decoder.decide();
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
