#include "launcher/report/job_end.h"

#include "tests/support/catch.h"

using namespace ddp::launcher;

TEST_CASE("the file of @record is parsed") {
  const auto exception = parse_error_json(
      R"({"message": {"message": "ValueError: boom: twice", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"/opt/torch/__init__.py\", line 346, in wrapper\n    return f(*args, **kwargs)\n  File \"/home/u/train.py\", line 12, in main\n    step(x)\nValueError: boom: twice\n", "timestamp": "1700000000"}}})");
  REQUIRE(exception);
  CHECK(exception->type == "ValueError");
  CHECK(exception->message == "boom: twice");
  CHECK(exception->frame == "/home/u/train.py:12 in main: step(x)");
  CHECK(exception->trace.starts_with("Traceback"));
  CHECK(exception->unix_time == 1'700'000'000);
}

TEST_CASE("the message may be a string, with an error code beside it") {
  auto exception = parse_error_json(R"({"message": "RuntimeError: no"})");
  REQUIRE(exception);
  CHECK(exception->type == "RuntimeError");
  CHECK(exception->message == "no");
  CHECK(exception->frame.empty());
  CHECK_FALSE(exception->unix_time);
  exception = parse_error_json(
      R"({"message": {"message": "x", "errorCode": 1, "extraInfo": {"timestamp": 1700000000}}})");
  REQUIRE(exception);
  CHECK(exception->type.empty());
  CHECK(exception->message == "x");
  CHECK(exception->unix_time == 1'700'000'000);
  exception = parse_error_json(R"({"other": [{}], "message": "x"})");
  REQUIRE(exception);
  CHECK(exception->message == "x");
  exception = parse_error_json(R"({"message": {"message": "x", "extraInfo": {"timestamp": 1700000000.9}}})");
  REQUIRE(exception);
  CHECK(exception->unix_time == 1'700'000'000);
}

TEST_CASE("a truncated text gives its complete parts") {
  const auto exception = parse_error_json(
      R"({"message": {"message": "KeyError: 'a'", "extraInfo": {"py_callstack": "Traceback (most rec)");
  REQUIRE(exception);
  CHECK(exception->type == "KeyError");
  CHECK(exception->message == "'a'");
  CHECK(exception->trace.starts_with("Trace"));
}

TEST_CASE("a string that was cut keeps its begin, and a cut traceback names no frame") {
  const std::string trace = R"(  File \"/a.py\", line 1, in f\n    x\n  File \"/b.py\", line 2, in \u00e9)";
  const std::string whole = R"({"message": {"message": "E: a\\b \u00e9)"
                            "\xc3\xa9"
                            R"(", "extraInfo": {"py_callstack": ")" +
                            trace + R"("}}})";
  REQUIRE(parse_error_json(whole)->frame == "/b.py:2 in é");
  const std::size_t message_at = whole.find("E: ") + 2;
  for (std::size_t size = message_at; size < whole.size() - 4; ++size) {
    INFO(whole.substr(0, size));
    const auto cut = parse_error_json(whole.substr(0, size));
    REQUIRE(cut);
    CHECK(cut->type == "E");
    CHECK(std::string("a\\b éé").starts_with(cut->message));
    CHECK(cut->frame == (size > whole.rfind("e9") + 2 ? "/b.py:2 in é" : ""));
  }
}

TEST_CASE("other text is no exception") {
  for (const char* text : {"", "{", "[]", "null", "42", "{\"massage\": 1}", "\xff\xfe", "{\"message\": null}",
                           "{\"extraInfo\": {\"message\": \"x\"}}"}) {
    INFO(text);
    CHECK_FALSE(parse_error_json(text));
  }
  CHECK_FALSE(parse_error_json(std::string(100'000, '[')));
  CHECK_FALSE(parse_error_json(R"({"a": )" + std::string(100'000, '{')));
}

TEST_CASE("malformed times are ignored") {
  for (const char* time : {"\"soon\"", "\"-5\"", "\"\"", "1e300", "true"}) {
    INFO(time);
    const auto exception = parse_error_json(
        std::string(R"({"message": {"message": "x", "extraInfo": {"timestamp": )") + time + "}}}");
    REQUIRE(exception);
    CHECK_FALSE(exception->unix_time);
  }
}

TEST_CASE("an exception is split into type and message") {
  CHECK(split_exception("torch.cuda.OutOfMemoryError: CUDA out of memory").type ==
        "torch.cuda.OutOfMemoryError");
  CHECK(split_exception("could not do it: no").type.empty());
  CHECK(split_exception("could not do it: no").message == "could not do it: no");
  CHECK(split_exception("KeyboardInterrupt").message == "KeyboardInterrupt");
  CHECK(split_exception(": x").type.empty());
}

TEST_CASE("the innermost frame of a traceback is found") {
  CHECK(last_frame("").empty());
  CHECK(last_frame("ValueError: File \"x\", line 3").empty());
  CHECK(last_frame(
            "  File \"a.py\", line 1, in <module>\n    f()\n  File \"<string>\", line 2, in f\nE: x\n") ==
        "<string>:2 in f");
  CHECK(last_frame("  File \"a.py\", line 1, in g\n    f(x)\n      ^\nE: x") == "a.py:1 in g: f(x)");
  CHECK(last_frame("File \"a.py\", line 1") == "a.py:1");
}
