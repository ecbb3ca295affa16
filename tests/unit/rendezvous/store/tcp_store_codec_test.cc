#include "rendezvous/store/tcp_store_codec.h"

#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/rendezvous/store/store_bytes.h"

namespace ddp::rendezvous {
namespace {

using test::greeting;
using test::RequestBytes;

// Returns a decoded request as text that owns its bytes: "SET[k|v]".
std::string describe(const StoreRequest& request) {
  std::string out = std::to_string(static_cast<int>(request.op)) + "[";
  for (const auto key : request.keys)
    out += std::string(key) + ",";
  out += "|";
  for (const auto value : request.values)
    out += std::string(value) + ",";
  return out + "|" + std::to_string(request.number) + "]";
}

void feed(StoreDecoder& decoder, const std::string& bytes) {
  decoder.feed(bytes);
}

struct Decoded {
  std::vector<std::string> requests;
  std::string error;
  StoreDialect dialect = StoreDialect::kUnknown;
};

void drain(StoreDecoder& decoder, Decoded& into) {
  StoreRequest request;
  while (into.error.empty()) {
    const Result<bool> next = decoder.next(request);
    if (!next) into.error = next.error().text;
    if (!next || !*next) break;
    into.requests.push_back(describe(request));
  }
  into.dialect = decoder.dialect();
}

Decoded decode(const std::vector<std::string>& chunks) {
  StoreDecoder decoder;
  Decoded out;
  for (const std::string& chunk : chunks) {
    feed(decoder, chunk);
    drain(decoder, out);
    if (!out.error.empty()) break;
  }
  return out;
}

Decoded decode(const std::string& bytes) {
  return decode(std::vector{bytes});
}

// Every request of a dialect with its arguments, and the expected decoded requests.
struct Sample {
  std::string bytes;
  std::vector<std::string> decoded;
};

std::string with_nul() {
  return std::string("\0\1\xff", 3);
}

Sample new_sample() {
  using O = StoreOp;
  Sample s;
  const auto add = [&s](std::string bytes, std::string decoded) {
    s.bytes += bytes;
    s.decoded.push_back(std::move(decoded));
  };
  add(greeting(), "0[||0]");
  add(RequestBytes(O::kPing).u32(0xfffffffe), "13[||4294967294]");
  add(RequestBytes(O::kSet).text("/k").text("value"), "1[/k,|value,|0]");
  add(RequestBytes(O::kSet).text("").text(""), "1[,|,|0]");
  add(RequestBytes(O::kCompareSet).text("/k").text("").text(with_nul()), "2[/k,|," + with_nul() + ",|0]");
  add(RequestBytes(O::kGet).text("/k"), "3[/k,||0]");
  add(RequestBytes(O::kAdd).text("/n").number(-2), "4[/n,||-2]");
  add(RequestBytes(O::kCheck).list({"/a", "/b"}), "5[/a,/b,||0]");
  add(RequestBytes(O::kWait).list({}), "6[||0]");
  add(RequestBytes(O::kWait).list({"/a"}), "6[/a,||0]");
  add(RequestBytes(O::kNumKeys), "7[||0]");
  add(RequestBytes(O::kDeleteKey).text("/k"), "8[/k,||0]");
  add(RequestBytes(O::kAppend).text("/k").text("more"), "9[/k,|more,|0]");
  add(RequestBytes(O::kMultiGet).list({"/a", "/b"}), "10[/a,/b,||0]");
  add(RequestBytes(O::kMultiSet).number(2).text("/a").text("1").text("/b").text("2"), "11[/a,/b,|1,2,|0]");
  add(RequestBytes(O::kCancelWait), "12[||0]");
  add(RequestBytes(O::kQueuePush).text("/q").text("job"), "14[/q,|job,|0]");
  add(RequestBytes(O::kQueuePop).text("/q"), "15[/q,||0]");
  add(RequestBytes(O::kQueueLen).text("/q"), "16[/q,||0]");
  add(RequestBytes(O::kListKeys), "17[||0]");
  add(RequestBytes(O::kBarrier).text("/b").number(8), "18[/b,||8]");
  return s;
}

// torch 2.1: opcodes are one below the new numbers, and there is no greeting.
Sample sample_2_1() {
  Sample s;
  s.bytes = RequestBytes(3).text("init/").number(1);
  s.bytes += RequestBytes(0).text("/k").text("v");
  s.bytes += RequestBytes(1).text("/k").text("v").text("w");
  s.bytes += RequestBytes(2).text("/k");
  s.bytes += RequestBytes(4).list({"/k"});
  s.bytes += RequestBytes(5).list({"/k", "/l"});
  s.bytes += RequestBytes(6);
  s.bytes += RequestBytes(8).text("/k").text("more");
  s.bytes += RequestBytes(7).text("/k");
  s.bytes += RequestBytes(9).list({"/k"});
  s.bytes += RequestBytes(10).number(1).text("/k").text("v");
  s.bytes += RequestBytes(11);
  s.decoded = {"4[init/,||1]", "1[/k,|v,|0]",  "2[/k,|v,w,|0]", "3[/k,||0]",
               "5[/k,||0]",    "6[/k,/l,||0]", "7[||0]",        "9[/k,|more,|0]",
               "8[/k,||0]",    "10[/k,||0]",   "11[/k,|v,|0]",  "12[||0]"};
  return s;
}

TEST_CASE("the new dialect encodes every operation") {
  const Sample sample = new_sample();
  const Decoded decoded = decode(sample.bytes);
  CHECK(decoded.error.empty());
  CHECK(decoded.requests == sample.decoded);
  CHECK(decoded.dialect == StoreDialect::kNew);
}

TEST_CASE("the operation numbers of torch 2.1 are decoded") {
  const Sample sample = sample_2_1();
  const Decoded decoded = decode(sample.bytes);
  CHECK(decoded.error.empty());
  CHECK(decoded.requests == sample.decoded);
  CHECK(decoded.dialect == StoreDialect::kOld21);
}

TEST_CASE("the same requests are decoded for any chunking") {
  std::mt19937 random(20261121);
  for (const Sample& sample : {new_sample(), sample_2_1()}) {
    std::vector<std::string> single;
    for (const char byte : sample.bytes)
      single.emplace_back(1, byte);
    CHECK(decode(single).requests == sample.decoded);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::string> chunks;
      for (std::size_t at = 0; at < sample.bytes.size();) {
        const std::size_t size = std::uniform_int_distribution<std::size_t>(0, 40)(random);
        chunks.push_back(sample.bytes.substr(at, size));
        at += size;
      }
      const Decoded decoded = decode(chunks);
      REQUIRE(decoded.error.empty());
      REQUIRE(decoded.requests == sample.decoded);
    }
  }
}

TEST_CASE("a deletion of torch <= 2.0 is recognized by the silence after it") {
  StoreDecoder decoder;
  Decoded out;
  feed(decoder, RequestBytes(3).text("init/").number(1).str() + RequestBytes(8).text("/gone").str());
  drain(decoder, out);
  CHECK(out.requests == std::vector<std::string>{"4[init/,||1]"});
  CHECK(decoder.undecided());
  decoder.decide();
  drain(decoder, out);
  CHECK(out.requests.back() == "8[/gone,||0]");
  CHECK(decoder.dialect() == StoreDialect::kOld20);

  // The dialect is decided from here on.
  feed(decoder, RequestBytes(8).text("/gone"));
  drain(decoder, out);
  CHECK(out.requests.back() == "8[/gone,||0]");
  CHECK_FALSE(decoder.undecided());
  feed(decoder, RequestBytes(9).text("/k").text("v"));
  drain(decoder, out);
  CHECK(out.error == "not a TCPStore request: byte 0x09 where an operation number belongs");
}

TEST_CASE("a deletion that arrives in parts is decided by the silence after its last byte") {
  StoreDecoder decoder;
  Decoded out;
  const std::string longest(kMaxStoreKey, 'k');
  const std::string bytes = RequestBytes(8).text(longest);
  feed(decoder, bytes.substr(0, 20));
  drain(decoder, out);
  CHECK_FALSE(decoder.undecided());
  feed(decoder, bytes.substr(20));
  drain(decoder, out);
  CHECK(decoder.undecided());
  decoder.decide();
  drain(decoder, out);
  CHECK(out.requests == std::vector<std::string>{"8[" + longest + ",||0]"});
  CHECK(decoder.dialect() == StoreDialect::kOld20);
}

TEST_CASE("an append of torch 2.1 whose value comes late is no deletion") {
  StoreDecoder decoder;
  Decoded out;
  feed(decoder, RequestBytes(8).text("/log"));
  drain(decoder, out);
  CHECK(out.requests.empty());
  CHECK(decoder.undecided());
  feed(decoder, RequestBytes().text("line"));
  CHECK_FALSE(decoder.undecided());
  drain(decoder, out);
  CHECK(out.requests == std::vector<std::string>{"9[/log,|line,|0]"});
}

TEST_CASE("a value that arrives after decide() and before next() makes an append") {
  StoreDecoder decoder;
  Decoded out;
  feed(decoder, RequestBytes(8).text("/log"));
  drain(decoder, out);
  decoder.decide();
  feed(decoder, RequestBytes().text("line"));
  drain(decoder, out);
  CHECK(out.requests == std::vector<std::string>{"9[/log,|line,|0]"});
}

TEST_CASE("the first request of torch 2.1 may be one that no older version has") {
  const Decoded decoded = decode(RequestBytes(7).text("/k"));
  CHECK(decoded.requests == std::vector<std::string>{"8[/k,||0]"});
  CHECK(decoded.dialect == StoreDialect::kOld21);
  CHECK(decode(RequestBytes(7).text("/k").str() + RequestBytes(12).str()).error ==
        "not a TCPStore request: byte 0x0c where an operation number belongs");
}

TEST_CASE("settle without a pending decision changes nothing") {
  StoreDecoder decoder;
  Decoded out;
  feed(decoder, RequestBytes(8));
  drain(decoder, out);
  CHECK_FALSE(decoder.undecided());
  decoder.decide();
  feed(decoder, RequestBytes().text("/log").text("line"));
  drain(decoder, out);
  CHECK(out.requests == std::vector<std::string>{"9[/log,|line,|0]"});
}

TEST_CASE("a first byte 0 without the magic is a SET of an old client") {
  const Decoded decoded = decode(RequestBytes(0).text("/key").text("value"));
  CHECK(decoded.requests == std::vector<std::string>{"1[/key,|value,|0]"});
  CHECK(decoded.dialect == StoreDialect::kOld);
  CHECK(decode(std::string(4, '\0')).dialect == StoreDialect::kUnknown);
  CHECK(decode(std::string(5, '\0')).dialect == StoreDialect::kOld);
}

TEST_CASE("bytes outside the protocol are refused at the first byte") {
  const std::pair<std::string, std::string> rows[] = {{"GET / HTTP/1.1\r\n", "0x47"},
                                                      {"\x16\x03\x01", "0x16"},
                                                      {greeting() + "\x13", "0x13"},
                                                      {greeting() + greeting(), "0x00"},
                                                      {RequestBytes(12), "0x0c"}};
  for (const auto& [bytes, byte] : rows)
    CHECK(decode(bytes).error ==
          "not a TCPStore request: byte " + byte + " where an operation number belongs");
}

TEST_CASE("limits are checked before memory is allocated") {
  const auto error_of = [](const std::string& request) { return decode(greeting() + request).error; };
  CHECK(error_of(RequestBytes(StoreOp::kGet).number(65537)) ==
        "GET: a key of 65537 bytes is over the store's limit of 65536");
  CHECK(error_of(RequestBytes(StoreOp::kGet).number(-1)) ==
        "GET: a key of 18446744073709551615 bytes is over the store's limit of 65536");
  CHECK(error_of(RequestBytes(StoreOp::kSet).text("/k").number(268435457)) ==
        "SET: a value of 268435457 bytes is over the store's limit of 268435456");
  CHECK(error_of(RequestBytes(StoreOp::kWait).number(131073)) ==
        "WAIT: 131073 keys in one request are over the store's limit of 131072");
  CHECK(error_of(RequestBytes(StoreOp::kGet).number(65536)).empty());
  CHECK(error_of(RequestBytes(StoreOp::kWait).number(131072)).empty());
  CHECK(error_of(RequestBytes(StoreOp::kSet).text("/k").number(268435456)).empty());

  // An announced value that was not sent takes no memory.
  StoreDecoder decoder;
  StoreRequest request;
  feed(decoder, greeting() + RequestBytes(StoreOp::kSet).text("/k").number(268435456).str());
  CHECK(*decoder.next(request));
  CHECK_FALSE(*decoder.next(request));
  CHECK(decoder.buffered() == 19);
}

TEST_CASE("a list of keys is limited in total") {
  StoreDecoder decoder;
  StoreRequest request;
  feed(decoder, greeting());
  CHECK(*decoder.next(request));
  feed(decoder, RequestBytes(StoreOp::kWait).number(1000));
  const std::string key = RequestBytes().text(std::string(65536, 'k'));
  Result<bool> next = decoder.next(request);
  int fed = 0;
  while (next && !*next && fed < 1000) {
    feed(decoder, key);
    ++fed;
    next = decoder.next(request);
  }
  REQUIRE_FALSE(next.has_value());
  CHECK(next.error().text == "WAIT: the request is over the store's limit of 16777216 bytes");
  CHECK(fed == 256);

  // The longest request: its number, the count, 255 keys of 64 KiB, and what is left.
  const std::string last(kMaxStoreKeyList - 9 - 255 * (8 + kMaxStoreKey) - 8, 'k');
  RequestBytes whole(StoreOp::kWait);
  whole.number(256);
  for (int i = 0; i < 255; ++i)
    whole.text(std::string(kMaxStoreKey, 'k'));
  StoreDecoder exact;
  feed(exact, greeting() + whole.text(last).str());
  CHECK(*exact.next(request));
  CHECK(*exact.next(request));
  CHECK(request.keys.size() == 256);
}

TEST_CASE("keys are shown as printable text") {
  CHECK(printable_key("a/b c") == "'a/b c'");
  CHECK(printable_key(std::string("\x1b[31m\n\0", 7)) ==
        "'?[31m"
        "?"
        "?'");
  CHECK(printable_key(std::string(100, 'x')) == "'" + std::string(80, 'x') + "…'");
  CHECK(printable_key(std::string(80, 'x')) == "'" + std::string(80, 'x') + "'");
}

}  // namespace
}  // namespace ddp::rendezvous
