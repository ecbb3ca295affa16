#include "launcher/lines/output_lines.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::launcher;
using namespace std::string_literals;

namespace {

std::string json_of(std::string_view bytes) {
  std::string out;
  append_json_string(bytes, out);
  return out;
}

// Decodes a string of append_json_string like Python's surrogateescape.
std::string bytes_of(const std::string& json) {
  std::string out;
  for (std::size_t at = 1; at + 1 < json.size();) {
    if (json[at] != '\\') {
      out += json[at++];
      continue;
    }
    const char kind = json[at + 1];
    if (kind != 'u') {
      out += kind == 't' ? '\t' : kind == 'r' ? '\r' : kind == 'n' ? '\n' : kind;
      at += 2;
      continue;
    }
    const auto value = static_cast<unsigned>(std::stoul(json.substr(at + 2, 4), nullptr, 16));
    REQUIRE((value < 0x80 || (value >= 0xdc80 && value <= 0xdcff)));
    out += static_cast<char>(value & 0xff);
    at += 6;
  }
  return out;
}

}  // namespace

TEST_CASE("strings of JSON") {
  CHECK(json_of("") == R"("")");
  CHECK(json_of("plain") == R"("plain")");
  CHECK(json_of("a\"b\\c\td\re") == R"("a\"b\\c\td\re")");
  CHECK(json_of("\x1b[1m\0\x7f"s) == R"("\u001b[1m\u0000\u007f")");
  CHECK(json_of("é 漢 🚀") == "\"é 漢 🚀\"");
  CHECK(json_of("\xc2\x80 \xdf\xbf") == "\"\xc2\x80 \xdf\xbf\"");  // the lowest and the highest of two bytes
}

TEST_CASE("bytes that are not UTF-8 can be recovered") {
  CHECK(json_of("a\xff"
                "b") == R"("a\udcffb")");
  CHECK(json_of("\xc3") == R"("\udcc3")");
  CHECK(json_of("\xc0\xaf") == R"("\udcc0\udcaf")");                      // overlong
  CHECK(json_of("\xe0\x80\x80") == R"("\udce0\udc80\udc80")");            // overlong
  CHECK(json_of("\xed\xb2\x80") == R"("\udced\udcb2\udc80")");            // a surrogate
  CHECK(json_of("\xf4\x90\x80\x80") == R"("\udcf4\udc90\udc80\udc80")");  // above U+10FFFF
  CHECK(json_of("\xf5\x80\x80\x80") == R"("\udcf5\udc80\udc80\udc80")");
  CHECK(json_of("\xf0\x9f\x9a") == R"("\udcf0\udc9f\udc9a")");  // truncated
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (std::size_t size = random() % 12; bytes.size() < size;) {
      const char* const parts[] = {"é", "漢", "🚀", "\xed\xa0", "\xf4\x8f\xbf\xbf", "\"", "\\", "\n", "x"};
      bytes += random() % 2 == 0 ? std::string(parts[random() % 9])
                                 : std::string(1, static_cast<char>(random() & 0xff));
    }
    CHECK(bytes_of(json_of(bytes)) == bytes);
  }
}

TEST_CASE("lines as JSON objects") {
  JsonLines lines;
  std::string out;
  const LineSource source{"gpu \"02\"", 13, 5, 1, "stdout"};
  lines.add(source, 1, "one\ntw", "T1", out);
  CHECK(out == R"({"time":"T1","host":"gpu \"02\"","rank":13,"local_rank":5,"stream":"stdout","line":"one"})"
               "\n");
  out.clear();
  lines.add(source, 2, "err\n", "T2", out);
  lines.add(source, 1, "o\n10%\r20%\r30%\nlast", "T3", out);
  lines.add(source, 1, "", "T4", out);
  const char* const expected[][3] = {
      {"T2", "stderr", "err"}, {"T3", "stdout", "two"}, {"T4", "stdout", "30%"}, {"T4", "stdout", "last"}};
  std::string_view rest = out;
  for (const auto& want : expected) {
    const std::size_t end = rest.find('\n');
    REQUIRE(end != std::string_view::npos);
    const auto object = nlohmann::json::parse(rest.substr(0, end));
    CHECK(object["time"] == want[0]);
    CHECK(object["stream"] == want[1]);
    CHECK(object["line"] == want[2]);
    CHECK(object["host"] == "gpu \"02\"");
    CHECK(object["rank"] == 13);
    CHECK(object["local_rank"] == 5);
    CHECK(object.size() == 6);
    rest.remove_prefix(end + 1);
  }
  CHECK(rest.empty());
}

TEST_CASE("each rank and stream has lines of its own") {
  JsonLines lines;
  std::string out;
  lines.add({"h", 0, 0, 0, ""}, 1, "a", "T", out);
  lines.add({"h", 1, 1, 0, ""}, 1, "b\n", "T", out);
  lines.add({"h", 0, 0, 0, ""}, 2, "c\n", "T", out);
  lines.add({"h", 0, 0, 0, ""}, 1, "d\n", "T", out);
  CHECK(out.find(R"("line":"ad"})") != std::string::npos);
  CHECK(out.find(R"("line":"b"})") != std::string::npos);
  CHECK(out.find(R"("line":"c"})") != std::string::npos);
}
